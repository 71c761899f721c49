"""Table of operation kinds: one row for each, with all that partita knows of it.

A row gives the treatment of the kind, and its traits for analysis, lowering and cost. If a kind
also needs functions of an operation's attributes (a rule, a device-local form), these are its entry
in `partita.stablehlo.operations`. Every device runs operations in full whose kind, of a newer
dialect, has no row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from partita.program import refused
from partita.program.collectives import COLLECTIVES
from partita.program.refused import Refused

Treatment = Literal[
    "elementwise",
    "broadcasting",
    "generated",
    "shardy",
    "own",
    "structure",
    "given",
    "rewritten",
    "replicated",
    "refused",
    "unknown",
]
"""Partitioning of the operations of a kind, if any:

- elementwise: each element of the result is made of the operands' elements at the same position
- broadcasting: elementwise, but smaller operands are stretched first, as NumPy does
- generated: constant-like; each dimension can be sharded as its uses need it
- shardy: by a rule of Shardy's, narrowed or widened in `partita.stablehlo.operations`
- own: by a rule of partita's own, see there, and `partita.stablehlo.rules.calls` for custom calls
- structure: they order other operations, see `partita.program.blocks`
- given: as the program itself says
- rewritten: replaced by others when a program is read; dynamic ones, if sizes are constant
- replicated: every device runs all of it
- refused: a program must not contain them
- unknown: they have no row
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """Facts about all operations of one kind."""

    treatment: Treatment
    reason: str = ""
    """Reason why a replicated kind is replicated."""
    refusal: Refused | None = None
    """Description of a refused kind for the user, and what to do instead."""

    # What it computes
    constant: bool = False
    """It holds the elements that it makes."""
    product: bool = False
    """It runs on matrix units, two FLOPs per point of its iteration space."""
    ragged: bool = False
    """A product of groups of rows, whose sizes are known only when the program runs."""
    multiplicative: bool = False
    """It multiplies its operands, or one by a number."""
    convolution: bool = False
    """A product whose second operand slides over the first."""
    multiplies: bool = False
    """It reveals what its operands' dimensions are for: one operand is a weight."""
    reduces: bool = False
    """It reduces dimensions by its body; the last half of its operands are initial values."""
    looks_up: bool = False
    """It reads rows of its first operand at indices."""
    scatters: bool = False
    """It combines rows with those of its first operand at indices, by its body."""
    slices: bool = False
    """It reads a part of its first operand, as large as its result."""
    reads_window: bool = False
    """The part that it reads is where its other operands say."""
    writes_window: bool = False
    """It replaces a part of its first operand by its second, where the others say; in place."""
    converts: bool = False
    """It makes the same numbers of another type."""
    rearranges: bool = False
    """It makes the same elements in another order or shape."""
    transposes: bool = False
    """It makes the same elements in another order."""
    reverses: bool = False
    """It turns dimensions around."""
    broadcasts: bool = False
    """It repeats its operand along other dimensions."""
    concatenates: bool = False
    """Its result consists of its operands, one after the other."""
    selects: bool = False
    """Its result consists of elements of several operands."""
    keeps_zeros: bool = False
    """It maps zeros to zeros."""

    # How it is reduced over devices
    sums: bool = False
    """Its results along a reduction factor are added."""
    combiner: str = ""
    """Combiner of several devices' results, if this is the body of a reduction."""
    additive: bool = False
    """It maps operands that are all unreduced sums to the unreduced sum of the results."""
    linear: tuple[int, ...] = ()
    """Operands of which one may be an unreduced sum if the others are reduced."""
    rounds_integers: bool = False
    """It is linear on floating-point numbers only: it truncates integers, or wraps them around."""
    scalar_body: bool = False
    """Its regions work on scalars and read nothing from outside."""

    # What it costs
    free: bool = False
    """Its result is constant-like if its operands are: every device can compute it as needed."""
    fusible: bool = False
    """It can be computed inside the kernel that reads it."""
    read_through: bool = False
    """It only says where elements are, which every kernel can read through."""
    renames: bool = False
    """Its result is its operand's memory by another name."""
    in_memory: bool = False
    """It needs its operands in memory, whatever makes them."""

    # What runs inside of it
    calls: bool = False
    """It does what its target says."""
    loops: bool = False
    """It runs its second region as long as its first gives true."""
    branches: bool = False
    """It runs one of its regions."""

    # Where it may stand
    collective: bool = False
    """It is how a manual computation has devices exchange data."""
    in_manual: bool = False
    """Manual computations may contain it, though it is refused elsewhere."""
    has_effect: bool = False
    """It must not be dropped if nothing reads what it makes."""

    # What follows from these
    elementwise: bool = dataclasses.field(init=False)
    """Each element of the result is made of those at the same position."""
    shardable: bool = dataclasses.field(init=False)
    """A device-local form is known, so that a rule can be followed."""
    fuses_operands: bool = dataclasses.field(init=False)
    """Its own kernel can compute its operands."""
    widens: bool = dataclasses.field(init=False)
    """It may be applied again to a narrower value wherever the wider one is read."""

    def __post_init__(self) -> None:
        follows = {
            "elementwise": self.treatment == "elementwise",
            "shardable": self.treatment in _SHARDABLE,
            "fuses_operands": (self.fusible or self.product or self.reduces or self.writes_window),
            "widens": self.read_through or self.converts,
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)

    def joint(self, operand: int) -> bool:
        """Returns whether an operand may be an unreduced sum if the others of these are, too.

        These are the terms of an addition, the parts of a concatenation, and both an array and the
        part that is written into it.
        """
        return self.additive or self.concatenates or (self.writes_window and operand < 2)


_SHARDABLE = ("elementwise", "broadcasting", "generated", "shardy", "own")

CARRY = "partita.carry"
"""Kind of the operation that stands for one carried value of a loop.

It reads the initial value and what the body passes on, and defines the value as the condition sees
it, as the body sees it, and as it leaves the loop. Being one operation, it gives all of them one
layout.
"""

JOIN = "partita.join"
"""Kind of the operation that stands for one result of a choice between branches."""

BARRIER = "partita.barrier"
"""Kind of the operation that stands for one operand of an optimization barrier."""

PASSING = (BARRIER, CARRY, JOIN)
"""Kinds of operations whose results are their operands."""

CHOOSE = "partita.choose"
"""Kind of the operation that reads what control flow depends on, which all devices must agree on.

That is the index of a branch, or whether a loop goes on. It requires replication.
"""

CONSTRAINT = "partita.sharding_constraint"
"""Kind of the operation that stands for a sharding constraint: its result is its operand."""

ROLL = "partita.roll"
"""Kind of the operation whose result is its operand from some index on, and then up to there."""

MANUAL = "sdy.manual_computation"
"""Kind of the operation that stands for a manual computation, the body of a `shard_map`.

Each dimension of each operand and result is a factor of its own, sharded as the program says.
"""

FULL_TO_SHARD = "partita.full_to_shard"
"""Kind of the operation by which a value enters a computation that is manual over some axes: what
each device along them has of it."""

SHARD_TO_FULL = "partita.shard_to_full"
"""Kind of the operation by which a value leaves such a computation."""

_ELEMENTWISE = Traits("elementwise", fusible=True, free=True)
_BROADCASTING = Traits("broadcasting")
_GENERATED = Traits("generated", fusible=True, free=True, read_through=True)
_SHARDY = Traits("shardy")
_PRODUCT = Traits("shardy", product=True, multiplies=True, sums=True)
_OWN = Traits("own")
_STRUCTURE = Traits("structure")
_REWRITTEN = Traits("rewritten")


def _replicated(reason: str) -> Traits:
    return Traits("replicated", reason=reason)


def _refused(why: Refused) -> Traits:
    return Traits("refused", refusal=why)


_BOUNDARY = Traits("given", fusible=True, renames=True, linear=(0,))
_COLLECTIVE = replace(_refused(refused.COLLECTIVE), collective=True, in_manual=True)
_EFFECT = replace(_refused(refused.HOST), has_effect=True)

OPERATIONS: Mapping[str, Traits] = {
    # elementwise
    "stablehlo.abs": _ELEMENTWISE,
    "stablehlo.add": replace(_ELEMENTWISE, combiner="add", additive=True),
    "stablehlo.and": replace(_ELEMENTWISE, combiner="and"),
    "stablehlo.atan2": _ELEMENTWISE,
    "stablehlo.bitcast_convert": _ELEMENTWISE,
    "stablehlo.cbrt": _ELEMENTWISE,
    "stablehlo.ceil": _ELEMENTWISE,
    "stablehlo.clamp": _ELEMENTWISE,
    "stablehlo.compare": _ELEMENTWISE,
    "stablehlo.complex": _ELEMENTWISE,
    "stablehlo.convert": replace(
        _ELEMENTWISE, converts=True, keeps_zeros=True, linear=(0,), rounds_integers=True
    ),
    "stablehlo.cosine": _ELEMENTWISE,
    "stablehlo.count_leading_zeros": _ELEMENTWISE,
    "stablehlo.divide": replace(_ELEMENTWISE, linear=(0,), rounds_integers=True),
    "stablehlo.exponential": _ELEMENTWISE,
    "stablehlo.exponential_minus_one": _ELEMENTWISE,
    "stablehlo.floor": _ELEMENTWISE,
    "stablehlo.imag": _ELEMENTWISE,
    "stablehlo.is_finite": _ELEMENTWISE,
    "stablehlo.log": _ELEMENTWISE,
    "stablehlo.log_plus_one": _ELEMENTWISE,
    "stablehlo.logistic": _ELEMENTWISE,
    "stablehlo.maximum": replace(_ELEMENTWISE, combiner="max"),
    "stablehlo.minimum": replace(_ELEMENTWISE, combiner="min"),
    "stablehlo.multiply": replace(_ELEMENTWISE, combiner="mul", linear=(0, 1), multiplicative=True),
    "stablehlo.negate": replace(_ELEMENTWISE, linear=(0,), multiplicative=True),
    "stablehlo.not": _ELEMENTWISE,
    "stablehlo.or": replace(_ELEMENTWISE, combiner="or"),
    "stablehlo.popcnt": _ELEMENTWISE,
    "stablehlo.power": _ELEMENTWISE,
    "stablehlo.real": _ELEMENTWISE,
    "stablehlo.reduce_precision": _ELEMENTWISE,
    "stablehlo.remainder": _ELEMENTWISE,
    "stablehlo.round_nearest_afz": _ELEMENTWISE,
    "stablehlo.round_nearest_even": _ELEMENTWISE,
    "stablehlo.rsqrt": _ELEMENTWISE,
    "stablehlo.select": replace(_ELEMENTWISE, selects=True),
    "stablehlo.shift_left": _ELEMENTWISE,
    "stablehlo.shift_right_arithmetic": _ELEMENTWISE,
    "stablehlo.shift_right_logical": _ELEMENTWISE,
    "stablehlo.sign": _ELEMENTWISE,
    "stablehlo.sine": _ELEMENTWISE,
    "stablehlo.sqrt": _ELEMENTWISE,
    "stablehlo.subtract": replace(_ELEMENTWISE, additive=True),
    "stablehlo.tan": _ELEMENTWISE,
    "stablehlo.tanh": _ELEMENTWISE,
    "stablehlo.xor": _ELEMENTWISE,
    "chlo._asin_acos_kernel": _ELEMENTWISE,
    "chlo.acos": _ELEMENTWISE,
    "chlo.acosh": _ELEMENTWISE,
    "chlo.asin": _ELEMENTWISE,
    "chlo.asinh": _ELEMENTWISE,
    "chlo.atan": _ELEMENTWISE,
    "chlo.atanh": _ELEMENTWISE,
    "chlo.bessel_i1e": _ELEMENTWISE,
    "chlo.conj": _ELEMENTWISE,
    "chlo.constant_like": _ELEMENTWISE,
    "chlo.cosh": _ELEMENTWISE,
    "chlo.digamma": _ELEMENTWISE,
    "chlo.erf": _ELEMENTWISE,
    "chlo.erf_inv": _ELEMENTWISE,
    "chlo.erfc": _ELEMENTWISE,
    "chlo.is_inf": _ELEMENTWISE,
    "chlo.is_neg_inf": _ELEMENTWISE,
    "chlo.is_pos_inf": _ELEMENTWISE,
    "chlo.lgamma": _ELEMENTWISE,
    "chlo.next_after": _ELEMENTWISE,
    "chlo.polygamma": _ELEMENTWISE,
    "chlo.sinh": _ELEMENTWISE,
    "chlo.square": replace(_ELEMENTWISE, keeps_zeros=True),
    "chlo.tan": _ELEMENTWISE,
    "chlo.zeta": _ELEMENTWISE,
    # elementwise, with stretched operands
    "chlo.broadcast_add": _BROADCASTING,
    "chlo.broadcast_and": _BROADCASTING,
    "chlo.broadcast_atan2": _BROADCASTING,
    "chlo.broadcast_compare": _BROADCASTING,
    "chlo.broadcast_complex": _BROADCASTING,
    "chlo.broadcast_divide": _BROADCASTING,
    "chlo.broadcast_maximum": _BROADCASTING,
    "chlo.broadcast_minimum": _BROADCASTING,
    "chlo.broadcast_multiply": _BROADCASTING,
    "chlo.broadcast_next_after": _BROADCASTING,
    "chlo.broadcast_or": _BROADCASTING,
    "chlo.broadcast_polygamma": _BROADCASTING,
    "chlo.broadcast_power": _BROADCASTING,
    "chlo.broadcast_remainder": _BROADCASTING,
    "chlo.broadcast_shift_left": _BROADCASTING,
    "chlo.broadcast_shift_right_arithmetic": _BROADCASTING,
    "chlo.broadcast_shift_right_logical": _BROADCASTING,
    "chlo.broadcast_subtract": _BROADCASTING,
    "chlo.broadcast_xor": _BROADCASTING,
    "chlo.broadcast_zeta": _BROADCASTING,
    # made from nothing
    "stablehlo.constant": replace(_GENERATED, constant=True),
    "stablehlo.iota": _GENERATED,
    "chlo.constant": replace(_GENERATED, constant=True),
    # with a rule of Shardy's
    "stablehlo.broadcast_in_dim": replace(
        _SHARDY,
        fusible=True,
        read_through=True,
        free=True,
        keeps_zeros=True,
        broadcasts=True,
        linear=(0,),
    ),
    "stablehlo.cholesky": _SHARDY,
    "stablehlo.concatenate": replace(_SHARDY, fusible=True, selects=True, concatenates=True),
    "stablehlo.convolution": replace(_PRODUCT, convolution=True),
    "stablehlo.dot_general": _PRODUCT,
    "stablehlo.dynamic_slice": replace(
        _SHARDY, fusible=True, slices=True, reads_window=True, sums=True
    ),
    "stablehlo.dynamic_update_slice": replace(_SHARDY, writes_window=True),
    "stablehlo.fft": _SHARDY,
    "stablehlo.gather": replace(_SHARDY, looks_up=True, sums=True),
    "stablehlo.pad": replace(_SHARDY, fusible=True),
    "stablehlo.reduce": replace(_SHARDY, reduces=True, linear=(0,), scalar_body=True),
    "stablehlo.reduce_window": replace(_SHARDY, scalar_body=True),
    "stablehlo.reshape": replace(
        _SHARDY,
        fusible=True,
        read_through=True,
        rearranges=True,
        renames=True,
        keeps_zeros=True,
        linear=(0,),
    ),
    "stablehlo.reverse": replace(_SHARDY, fusible=True, linear=(0,), reverses=True),
    "stablehlo.scatter": replace(_SHARDY, scatters=True, scalar_body=True),
    "stablehlo.select_and_scatter": replace(_SHARDY, scalar_body=True),
    "stablehlo.slice": replace(_SHARDY, fusible=True, slices=True, sums=True, linear=(0,)),
    "stablehlo.sort": replace(_SHARDY, scalar_body=True),
    "stablehlo.transpose": replace(
        _SHARDY, fusible=True, read_through=True, rearranges=True, transposes=True, linear=(0,)
    ),
    "stablehlo.triangular_solve": _SHARDY,
    # with a rule of partita's own
    "stablehlo.batch_norm_grad": _OWN,
    "stablehlo.batch_norm_inference": _OWN,
    "stablehlo.batch_norm_training": _OWN,
    "stablehlo.custom_call": replace(_OWN, sums=True, calls=True),
    "stablehlo.einsum": replace(_OWN, sums=True),
    "stablehlo.map": replace(_OWN, scalar_body=True),
    "chlo.ragged_dot": replace(_OWN, product=True, ragged=True, multiplies=True, sums=True),
    "chlo.top_k": _OWN,
    # structure
    "stablehlo.case": replace(_STRUCTURE, branches=True),
    "stablehlo.if": replace(_STRUCTURE, branches=True),
    "stablehlo.optimization_barrier": _STRUCTURE,
    "stablehlo.return": _STRUCTURE,
    "stablehlo.while": replace(_STRUCTURE, loops=True),
    # rewritten
    "arith.constant": _REWRITTEN,
    "stablehlo.broadcast": _REWRITTEN,
    "stablehlo.composite": _REWRITTEN,
    "stablehlo.dot": _REWRITTEN,
    "stablehlo.dynamic_broadcast_in_dim": _REWRITTEN,
    "stablehlo.dynamic_conv": _REWRITTEN,
    "stablehlo.dynamic_gather": _REWRITTEN,
    "stablehlo.dynamic_iota": _REWRITTEN,
    "stablehlo.dynamic_pad": _REWRITTEN,
    "stablehlo.dynamic_reshape": _REWRITTEN,
    "stablehlo.get_dimension_size": _REWRITTEN,
    "stablehlo.real_dynamic_slice": _REWRITTEN,
    "stablehlo.unary_einsum": _REWRITTEN,
    "chlo.mulhi": _REWRITTEN,
    # run in full by every device
    "stablehlo.rng_bit_generator": _replicated("the bits depend on the size of the whole"),
    "stablehlo.torch_index_select": _replicated("no local form is known"),
    "chlo.scan": _replicated("each index depends on those before it"),
    # refused
    "stablehlo.after_all": _refused(refused.HOST),
    **{f"stablehlo.{name}": _COLLECTIVE for name in COLLECTIVES},
    "stablehlo.async_done": _refused(refused.ASYNC),
    "stablehlo.async_start": _refused(refused.ASYNC),
    "stablehlo.collective_broadcast": _refused(refused.COLLECTIVE),
    "stablehlo.collective_reduce": _refused(refused.COLLECTIVE),
    "stablehlo.create_token": _refused(refused.HOST),
    "stablehlo.cross-replica-sum": _refused(refused.COLLECTIVE),
    "stablehlo.get_tuple_element": _refused(refused.TUPLE),
    "stablehlo.infeed": _EFFECT,
    "stablehlo.outfeed": _EFFECT,
    "stablehlo.partition_id": replace(_refused(refused.DEVICE), in_manual=True),
    "stablehlo.recv": _EFFECT,
    "stablehlo.replica_id": _refused(refused.DEVICE),
    "stablehlo.rng": _refused(refused.KEYLESS),
    "stablehlo.send": _EFFECT,
    "stablehlo.set_dimension_size": _refused(refused.DYNAMIC),
    "stablehlo.tuple": _refused(refused.TUPLE),
    "stablehlo.uniform_dequantize": _refused(refused.QUANTIZED),
    "stablehlo.uniform_quantize": _refused(refused.QUANTIZED),
    "chlo.broadcast_select": _refused(refused.UNREADABLE),
    # the program's own
    CARRY: replace(_STRUCTURE, in_memory=True),
    JOIN: replace(_STRUCTURE, in_memory=True),
    BARRIER: replace(_STRUCTURE, in_memory=True),
    CHOOSE: _STRUCTURE,
    CONSTRAINT: Traits("given", fusible=True, renames=True),
    MANUAL: Traits("given"),
    FULL_TO_SHARD: _BOUNDARY,
    SHARD_TO_FULL: _BOUNDARY,
    ROLL: Traits("given", fusible=True, linear=(0,)),
}
"""The traits of every kind, by name."""

UNKNOWN = Traits("unknown")
"""Traits of a kind without a row."""


def traits(kind: str) -> Traits:
    """Returns the traits of a kind of operations, as StableHLO names it."""
    return OPERATIONS.get(kind, UNKNOWN)
