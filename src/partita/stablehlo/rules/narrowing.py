"""Indexed and windowed operations: which factors of Shardy's rule have a purely local form.

A device can do its part of a look-up alone only if that is one index wide: then indices outside of
its shard are masked, and the look-up is summed over the devices. Wider windows could cross from one
shard into the next. So it is for gather, and the dynamic slices by which a loop reads one layer of
a stack. What is written may be wider, as long as no two windows overlap: each device writes what
falls into its shard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from partita.program.ir import TensorType
from partita.program.rule import FactorKind, Rule
from partita.stablehlo.mlir import hlo
from partita.stablehlo.rules import moves
from partita.stablehlo.rules.scatters import numbers_of, window_dims, writes_apart
from partita.stablehlo.rules.windows import scatter_rule, slide_rule
from partita.stablehlo.versions import reshape_rule

Types = Sequence[TensorType]
Narrow = Callable[[Any, Rule, Types, Types], Rule]
"""Function from an MLIR operation, Shardy's rule, operand and result types to the rule to use."""

_WINDOWS = "{} reads or writes windows along this dimension"


def block_kind(rule: Rule, kind: FactorKind, reason: str) -> Rule:
    """The rule with all factors of one kind blocked."""
    return _block(rule, [n for n, f in enumerate(rule.factors) if f.kind == kind], reason)


def _reshape(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Not sharded along factors that only its operand has, or only its result.

    They stand for a dimension that the other side does not have, not even as a part: `[8, 3]`
    made into `[3, 8]`.
    """
    rule = reshape_rule(op.attributes["sdy.sharding_rule"], rule, results[0].shape)
    sides = [
        {f for tensor in side for dim in tensor for f in dim}
        for side in (rule.operands, rule.results)
    ]
    cut = sorted(f for f in sides[0] ^ sides[1] if rule.factors[f].size > 1)
    return _block(rule, cut, "reshape cuts this dimension otherwise")


def _gather(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(op.attributes["slice_sizes"])
    collapsed = set(numbers.collapsed_slice_dims)
    wide = [
        dim
        for dim in numbers.start_index_map
        if dim not in collapsed and 1 < sizes[dim] < operands[0].shape[dim]
    ]
    return _block(rule, _leading(rule, 0, wide), _WINDOWS.format("gather"))


def _scatter(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Devices drop indices outside of their shards; of wider windows they write their own part."""
    lying = window_dims(op)
    widths = {dim: operands[-1].shape[lying[dim]] for dim in lying}
    moving = [dim for dim, width in widths.items() if width < operands[0].shape[dim]]
    indexed = set(numbers_of(op).scattered_dims_to_operand_dims)
    local = [d for d in moving if d in indexed and (widths[d] == 1 or writes_apart(op))]
    rule = _set_kind(rule, _leading(rule, 0, local), "parallel")
    others = [dim for dim in moving if dim not in local]
    return _block(rule, _leading(rule, 0, others), _WINDOWS.format("scatter"))


def _dynamic_slice(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """One index of a dimension: the device that holds it contributes it, the others zeros."""
    sizes = list(op.attributes["slice_sizes"])
    found = [dim for dim, size in enumerate(operands[0].shape) if sizes[dim] == 1 < size]
    rule = _set_kind(rule, _leading(rule, 0, found), "reduction")
    result = tuple(() if dim in found else made for dim, made in enumerate(rule.results[0]))
    return dataclasses.replace(rule, results=(result,))


def _dynamic_update_slice(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Shards a dimension that is written in part: each device writes what falls into its shard.

    The update itself requires replication along such a dimension, whatever its size.
    """
    whole, update = operands[0].shape, operands[1].shape
    moving = [dim for dim, (a, b) in enumerate(zip(whole, update, strict=True)) if a != b]
    reason = _WINDOWS.format("dynamic_update_slice")
    rule = _block(rule, _leading(rule, 1, moving), reason)
    return _set_kind(rule, _leading(rule, 0, moving), "parallel")


def _leading(rule: Rule, operand: int, dims: Iterable[int]) -> list[int]:
    """The factors that carry the shards of these dimensions of an operand."""
    found = (rule.leading(rule.operands[operand][dim]) for dim in dims)
    return [factor for factor in found if factor is not None]


def _block(rule: Rule, factors: Iterable[int], reason: str) -> Rule:
    return _set_kind(rule, factors, "blocked", reason)


def _set_kind(rule: Rule, factors: Iterable[int], kind: FactorKind, reason: str = "") -> Rule:
    changed = list(rule.factors)
    for factor in factors:
        changed[factor] = dataclasses.replace(changed[factor], kind=kind, reason=reason)
    return dataclasses.replace(rule, factors=tuple(changed))


NARROWED: dict[str, Narrow] = {
    "stablehlo.convolution": slide_rule,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.concatenate": moves.moving(moves.joined),
    "stablehlo.pad": moves.moving(moves.padded),
    "stablehlo.reverse": moves.moving(moves.reversed_),
    "stablehlo.slice": moves.slice_rule,
    "stablehlo.reduce_window": slide_rule,
    "stablehlo.reshape": _reshape,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": scatter_rule,
}
"""Corrections by kind, where a device cannot follow Shardy's rule alone."""
