"""Indexed and windowed operations: which factors of Shardy's rule have a purely local form.

Shardy lets a shard pass along the indexed dimensions of gather, scatter and dynamic_update_slice.
A device can do its part alone only if what is looked up or written there is one index wide: then
indices outside of its piece are masked. Wider windows could cross from one piece into the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from partita.program.ir import Rule, TensorType


def block_windows(op: Any, rule: Rule, operands: list[TensorType]) -> Rule:
    """The rule with those factors blocked that would need elements of neighbouring devices."""
    short = op.name.rpartition(".")[2]
    if op.name == "stablehlo.custom_call":
        return _block(rule, _not_everywhere(rule), f"{short} is local along batch dimensions only")
    if op.name == "stablehlo.convolution":
        reason = f"{short} reads windows along this dimension"
        return _block(rule, _spatial(op, rule), reason)
    find = _WINDOWED.get(op.name)
    if find is None:
        return rule
    leading = {rule.leading(rule.operands[0][dim]) for dim in find(op, rule, operands)}
    reason = f"{short} reads or writes windows along this dimension"
    return _block(rule, leading - {None}, reason)


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


def _spatial(op: Any, rule: Rule) -> list[int]:
    """Factors that a spatial dimension of an image or a kernel is made of."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = (
        (rule.operands[0], numbers.input_spatial_dimensions),
        (rule.operands[1], numbers.kernel_spatial_dimensions),
        (rule.results[0], numbers.output_spatial_dimensions),
    )
    return [factor for tensor, dims in spatial for dim in dims for factor in tensor[dim]]


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


def _dynamic_update_slice(op: Any, rule: Rule, operands: list[TensorType]) -> list[int]:
    whole, update = operands[0].shape, operands[1].shape
    return [dim for dim, (a, b) in enumerate(zip(whole, update, strict=True)) if a != b]


_WINDOWED = {
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
}
