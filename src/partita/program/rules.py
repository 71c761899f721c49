"""What partita knows of operations beyond Shardy's sharding rules. Operation knowledge is tables.

`SHARDABLE` lists the kinds whose device-local form is the same operation on local shapes, or for
which `partita.spmd.localize` has a rewriting. Any other kind is kept replicated and reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.program.ir import Factor, Rule, TensorType

_ELEMENTWISE = frozenset(
    """abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert cosine
    count_leading_zeros divide exponential exponential_minus_one floor imag is_finite log
    log_plus_one logistic maximum minimum multiply negate not or popcnt power real
    reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor""".split()
)
_STRUCTURAL = frozenset(
    """broadcast_in_dim reshape transpose dot_general reduce gather scatter iota constant slice pad
    concatenate dynamic_slice dynamic_update_slice reverse""".split()
)

_CHLO_ELEMENTWISE = frozenset(
    """acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma next_after
    polygamma sinh square tan zeta""".split()
)

ELEMENTWISE = frozenset(f"stablehlo.{kind}" for kind in _ELEMENTWISE) | frozenset(
    f"chlo.{kind}" for kind in _CHLO_ELEMENTWISE
)
"""Kinds that compute each result element from the operand elements at the same position."""

SHARDABLE = ELEMENTWISE | frozenset(f"stablehlo.{kind}" for kind in _STRUCTURAL)

REGION_KINDS = frozenset({"stablehlo.reduce", "stablehlo.scatter"})
"""Kinds whose region is a scalar combination and captures nothing."""

COMBINERS = {
    "stablehlo.add": "add",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "mul",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}
"""Scalar operations under which partial results of several devices can be combined."""

HOST_CALLS = ("callback", "infeed", "outfeed", "host_")
"""Parts of custom-call targets that reach back to the host."""


def identity(type_: TensorType) -> Rule:
    """One parallel factor per dimension, for results made from nothing (iota, constants)."""
    factors = tuple(Factor(size, "parallel") for size in type_.shape)
    return Rule(factors, (), (tuple((i,) for i in range(len(factors))),))


def same(type_: TensorType, operands: int, results: int) -> Rule:
    """All operands and results are one value: carried by a loop, or what branches give."""
    factors = tuple(Factor(size, "parallel") for size in type_.shape)
    tensor = tuple((dim,) for dim in range(len(type_.shape)))
    return Rule(factors, (tensor,) * operands, (tensor,) * results)


def opaque(operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule:
    """No factor at all: every operand is needed whole, every result is produced whole."""

    def unmapped(types: Sequence[TensorType]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(() for _ in type_.shape) for type_ in types)

    return Rule((), unmapped(operands), unmapped(results), known=False)
