"""Scatters: windows of their updates, written at the places that their indices say."""

from __future__ import annotations

from typing import Any

from partita.stablehlo.bodies import combiner
from partita.stablehlo.mlir import hlo, ir


def numbers_of(op: Any) -> Any:
    """Returns the dimension numbers of a scatter."""
    return hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


def window_dims(op: Any) -> dict[int, int]:
    """Returns the operand's dimensions along which windows extend, with those of the updates."""
    numbers = numbers_of(op)
    apart = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    rank = len(ir.RankedTensorType(op.operands[0].type).shape)
    inside = (dim for dim in range(rank) if dim not in apart)
    return dict(zip(inside, numbers.update_window_dims, strict=True))


def batch_dims(op: Any) -> list[int]:
    """Returns the dimensions of the updates whose every index is a window of its own, in order."""
    rank = len(ir.RankedTensorType(op.operands[-1].type).shape)
    windows = set(numbers_of(op).update_window_dims)
    return [dim for dim in range(rank) if dim not in windows]


def writes_apart(op: Any) -> bool:
    """Returns whether no two windows overlap, so that a device can write its part of the operand.

    Each window is then alone in its batch, and elements that must not change can be written with
    their old values.
    """
    numbers = numbers_of(op)
    known = replaces(op) or combiner(op) is not None
    shape = ir.RankedTensorType(op.operands[len(op.results)].type).shape
    own = {*numbers.scatter_indices_batching_dims, numbers.index_vector_dim}
    return known and all(size == 1 for dim, size in enumerate(shape) if dim not in own)


def replaces(op: Any) -> bool:
    """Returns whether the updates replace what was there."""
    block = op.regions[0].blocks[0]
    *_, end = block.operations
    return len(op.results) == 1 and end.operation.operands[0] == block.arguments[1]
