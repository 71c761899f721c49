"""Indexed and windowed operations: which factors of Shardy's rule have a purely local form.

A device can do its part of a look-up or an update alone only if that is one index wide: then
indices outside of its piece are masked, and a look-up is summed over the devices. Wider windows
could cross from one piece into the next. So it is for gather, scatter, and the dynamic slices by
which a loop reads one layer of a stack and writes one. Padding moves elements into the next
piece too, even where a dimension keeps its size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from partita.program.ir import FactorKind, Rule, TensorType


def block_windows(op: Any, rule: Rule, operands: list[TensorType]) -> Rule:
    """The rule with those factors blocked that would need elements of neighbouring devices."""
    short = op.name.rpartition(".")[2]
    if op.name == "stablehlo.custom_call":
        return _block(rule, _not_everywhere(rule), f"{short} is local along batch dimensions only")
    if op.name == "stablehlo.pad":
        return _block(rule, _padded(op, rule), f"{short} moves elements along this dimension")
    if op.name == "stablehlo.dynamic_slice":
        return _one_wide_slices(rule, op, operands[0])
    reason = f"{short} reads or writes windows along this dimension"
    if op.name == "stablehlo.dynamic_update_slice":
        return _updates(rule, operands, reason)
    find = _WINDOWED.get(op.name)
    if find is None:
        return rule
    leading = {rule.leading(rule.operands[0][dim]) for dim in find(op, rule, operands)}
    return _block(rule, leading - {None}, reason)


def block_kind(rule: Rule, kind: FactorKind, reason: str) -> Rule:
    """The rule with all factors of one kind blocked."""
    return _block(rule, [n for n, f in enumerate(rule.factors) if f.kind == kind], reason)


def _block(rule: Rule, factors: Iterable[int | None], reason: str) -> Rule:
    changed = list(rule.factors)
    for factor in factors:
        if factor is not None:
            changed[factor] = dataclasses.replace(changed[factor], kind="blocked", reason=reason)
    return dataclasses.replace(rule, factors=tuple(changed))


def _not_everywhere(rule: Rule) -> list[int]:
    """Factors that some operand or result does not have: not those of batch dimensions."""
    tensors = (*rule.operands, *rule.results)
    held = [{factor for dim in tensor for factor in dim} for tensor in tensors]
    return [f for f in range(len(rule.factors)) if not all(f in each for each in held)]


def _padded(op: Any, rule: Rule) -> list[int | None]:
    """Factors of the dimensions that are padded or cropped, whether or not they keep their size."""
    kinds = ("edge_padding_low", "edge_padding_high", "interior_padding")
    widths = zip(*(op.attributes[kind] for kind in kinds), strict=True)
    return [rule.leading(rule.operands[0][dim]) for dim, each in enumerate(widths) if any(each)]


def _gather(op: Any, rule: Rule, operands: list[TensorType]) -> list[int]:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(op.attributes["slice_sizes"])
    collapsed = set(numbers.collapsed_slice_dims)
    return [
        dim
        for dim in numbers.start_index_map
        if dim not in collapsed and sizes[dim] < operands[0].shape[dim]
    ]


def _scatter(op: Any, rule: Rule, operands: list[TensorType]) -> list[int]:
    attribute = op.attributes["scatter_dimension_numbers"]
    numbers = stablehlo.ScatterDimensionNumbers(attribute)
    inserted = set(numbers.inserted_window_dims)
    return [dim for dim in numbers.scattered_dims_to_operand_dims if dim not in inserted]


def _one_wide_slices(rule: Rule, op: Any, operand: TensorType) -> Rule:
    """One index of a dimension: the device that holds it contributes it, the others zeros."""
    sizes = list(op.attributes["slice_sizes"])
    found = [dim for dim, size in enumerate(operand.shape) if sizes[dim] == 1 < size]
    rule = _set_kind(rule, found, "reduction")
    result = tuple(() if dim in found else made for dim, made in enumerate(rule.results[0]))
    return dataclasses.replace(rule, results=(result,))


def _updates(rule: Rule, operands: list[TensorType], reason: str) -> Rule:
    """Of a dimension that is written in part, one index at a time is written by its device.

    The update itself is needed whole along such a dimension, whatever its size.
    """
    whole, update = operands[0].shape, operands[1].shape
    moving = [dim for dim, (a, b) in enumerate(zip(whole, update, strict=True)) if a != b]
    one_wide = [dim for dim in moving if update[dim] == 1]
    needed = [(1, dim) for dim in moving] + [(0, dim) for dim in moving if dim not in one_wide]
    blocked = {rule.leading(rule.operands[number][dim]) for number, dim in needed}
    return _set_kind(_block(rule, blocked, reason), one_wide, "parallel")


def _set_kind(rule: Rule, dims: Iterable[int], kind: FactorKind) -> Rule:
    """The rule with the factors of these dimensions of the first operand of another kind."""
    changed = list(rule.factors)
    for dim in dims:
        factor = rule.leading(rule.operands[0][dim])
        if factor is not None:
            changed[factor] = dataclasses.replace(changed[factor], kind=kind, reason="")
    return dataclasses.replace(rule, factors=tuple(changed))


_WINDOWED = {
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
