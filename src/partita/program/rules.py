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
    concatenate dynamic_slice dynamic_update_slice reverse convolution sort reduce_window
    select_and_scatter fft cholesky triangular_solve custom_call""".split()
)

_CHLO_ELEMENTWISE = frozenset(
    """acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma next_after
    polygamma sinh square tan zeta""".split()
)

ELEMENTWISE = frozenset(f"stablehlo.{kind}" for kind in _ELEMENTWISE) | frozenset(
    f"chlo.{kind}" for kind in _CHLO_ELEMENTWISE
)
"""Kinds that compute each result element from the operand elements at the same position."""

SHARDABLE = ELEMENTWISE | {"chlo.top_k"} | {f"stablehlo.{kind}" for kind in _STRUCTURAL}

REGION_KINDS = frozenset(
    f"stablehlo.{kind}" for kind in "reduce scatter sort reduce_window select_and_scatter".split()
)
"""Kinds whose regions work on scalars and capture nothing."""

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


def own(kind: str, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule | None:
    """Rules of operations that Shardy has none for; None if there is none here either."""
    if kind in ELEMENTWISE and all(t.shape == results[0].shape for t in operands):
        return same(results[0], len(operands), len(results))
    if kind == "chlo.top_k":
        whole = len(operands[0].shape) - 1
        reason = "top_k needs this dimension whole"
        factors = [Factor(size, "parallel") for size in operands[0].shape[:-1]]
        factors.append(Factor(operands[0].shape[-1], "blocked", reason))
        tensor = tuple((dim,) for dim in range(whole + 1))
        kept = (*tensor[:-1], ())
        return Rule(tuple(factors), (tensor,), (kept,) * len(results))
    return None


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
