"""Indexed and windowed operations: which factors of Shardy's rule have a purely local form.

Shardy lets a shard pass along the indexed dimensions of gather, scatter and dynamic_update_slice.
A device can do its part alone only if what is looked up or written there is one index wide: then
indices outside of its piece are masked. Wider windows could cross from one piece into the next.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from partita.program.ir import Rule, TensorType


def block_windows(op: Any, rule: Rule, operands: list[TensorType]) -> Rule:
    """The rule with those factors blocked that would need elements of neighbouring devices."""
    find = _WINDOWED.get(op.name)
    if find is None:
        return rule
    factors = list(rule.factors)
    for dim in find(op, rule, operands):
        leading = rule.leading(rule.operands[0][dim])
        if leading is not None:
            reason = f"{op.name.rpartition('.')[2]} reads or writes windows along this dimension"
            factors[leading] = dataclasses.replace(factors[leading], kind="blocked", reason=reason)
    return dataclasses.replace(rule, factors=tuple(factors))


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
