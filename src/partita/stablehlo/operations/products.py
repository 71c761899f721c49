"""Products: their dimensions, and einsums, for which Shardy has no rule."""

from __future__ import annotations

from typing import Any

from partita.stablehlo.mlir import hlo
from partita.stablehlo.operations.entry import Entry, Types
from partita.stablehlo.operations.letters import Letters, SizesOf, becoming, flat, shape


def _dot(op: Any) -> Letters:
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = [f"l{dim}" for dim in range(len(shape(op.operands[0])))]
    right = [f"r{dim}" for dim in range(len(shape(op.operands[1])))]
    shared = list(
        zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True)
    )
    summed = list(
        zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)
    )
    for mine, other in (*shared, *summed):
        right[other] = left[mine]
    paired = {left[mine] for mine, _ in (*shared, *summed)}
    free = [name for name in (*left, *right) if name not in paired]
    return tuple(left), tuple(right), (*(left[mine] for mine, _ in shared), *free)


def _renumber_dot(op: Any, sizes_of: SizesOf) -> None:
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = (becoming(sizes_of(operand)) for operand in op.operands)
    op.attributes["dot_dimension_numbers"] = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=flat(left[d] for d in numbers.lhs_batching_dimensions),
        rhs_batching_dimensions=flat(right[d] for d in numbers.rhs_batching_dimensions),
        lhs_contracting_dimensions=flat(left[d] for d in numbers.lhs_contracting_dimensions),
        rhs_contracting_dimensions=flat(right[d] for d in numbers.rhs_contracting_dimensions),
    )


def _einsum(op: Any, operands: Types, results: Types) -> str | None:
    """Returns the rule of an einsum; None for diagonals, and for dots that stand for dimensions."""
    config = op.attributes["einsum_config"].value
    inputs, _, output = config.replace(" ", "").partition("->")
    if "." in config or any(len(set(each)) < len(each) for each in (*inputs.split(","), output)):
        return None
    tensors = [
        " ".join(letter if letter in output else f"{letter}+" for letter in tensor)
        for tensor in inputs.split(",")
    ]
    return f"{', '.join(tensors)} -> {' '.join(output)}"


ENTRIES = {
    "stablehlo.dot_general": Entry(letters=_dot, renumber=_renumber_dot),
    "stablehlo.einsum": Entry(own=_einsum),
}
"""Entries of products, by kind."""
