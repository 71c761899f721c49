"""Look-ups and writes at indices: the letters of their dimensions, and how they count them."""

from __future__ import annotations

from typing import Any

from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.passes.dimensions.counting import (
    FIXED,
    Letter,
    Letters,
    SizesOf,
    becoming,
    flat,
    ones,
    shape,
)


def gather(op: Any) -> Letters:
    """The letters of a look-up: rows of indices, and what is read in full at each."""
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes, offsets = list(op.attributes["slice_sizes"]), list(numbers.offset_dims)
    operand, indices, result = (shape(v) for v in (*op.operands, *op.results))
    vector, moving = numbers.index_vector_dim, list(numbers.start_index_map)
    rows = [FIXED if d == vector else f"i{d}" for d in range(len(indices))]
    table: list[Letter] = [FIXED] * len(operand)
    shared = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    for mine, other in shared.items():
        table[mine] = rows[other]
    made: list[Letter] = [FIXED] * len(result)
    dropped = {*numbers.collapsed_slice_dims, *shared}
    window = [dim for dim in range(len(operand)) if dim not in dropped]
    for dim, place in zip(window, offsets, strict=True):
        if sizes[dim] == operand[dim] and dim not in moving:
            table[dim] = made[place] = f"o{dim}"
    batch = [dim for dim in range(len(result)) if dim not in offsets]
    for place, name in zip(batch, [r for d, r in enumerate(rows) if d != vector], strict=True):
        made[place] = name
    return tuple(table), tuple(rows), tuple(made)


def renumber_gather(op: Any, sizes_of: SizesOf) -> None:
    """Counts the dimensions of a look-up as they will be."""
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    table, rows, made = (becoming(sizes_of(v)) for v in (*op.operands, *op.results))
    op.attributes["dimension_numbers"] = hlo.GatherDimensionNumbers.get(
        offset_dims=flat(made[d] for d in numbers.offset_dims),
        collapsed_slice_dims=flat(table[d] for d in numbers.collapsed_slice_dims),
        operand_batching_dims=flat(table[d] for d in numbers.operand_batching_dims),
        start_indices_batching_dims=flat(rows[d] for d in numbers.start_indices_batching_dims),
        start_index_map=flat(table[d] for d in numbers.start_index_map),
        index_vector_dim=_vector(rows, numbers.index_vector_dim),
    )
    batch = set(numbers.operand_batching_dims)
    sizes = [
        list(ones(each, 1) if dim in batch else each) if len(each) > 1 else [known]
        for dim, (known, each) in enumerate(
            zip(op.attributes["slice_sizes"], sizes_of(op.operands[0]), strict=True)
        )
    ]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(flat(sizes))


def scatter(op: Any) -> Letters:
    """The letters of a write: rows of indices, and what is written in full at each."""
    if len(op.results) > 1:
        return tuple((FIXED,) * len(shape(v)) for v in (*op.operands, *op.results))
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    operand, indices, update = (shape(v) for v in op.operands)
    vector = numbers.index_vector_dim
    rows = [FIXED if d == vector else f"i{d}" for d in range(len(indices))]
    table: list[Letter] = [FIXED] * len(operand)
    shared = dict(
        zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    for mine, other in shared.items():
        table[mine] = rows[other]
    made: list[Letter] = [FIXED] * len(update)
    dropped = {*numbers.inserted_window_dims, *shared}
    window = [dim for dim in range(len(operand)) if dim not in dropped]
    for dim, place in zip(window, numbers.update_window_dims, strict=True):
        if update[place] == operand[dim] and dim not in numbers.scattered_dims_to_operand_dims:
            table[dim] = made[place] = f"o{dim}"
    batch = [dim for dim in range(len(update)) if dim not in numbers.update_window_dims]
    for place, name in zip(batch, [r for d, r in enumerate(rows) if d != vector], strict=True):
        made[place] = name
    return tuple(table), tuple(rows), tuple(made), tuple(table)


def renumber_scatter(op: Any, sizes_of: SizesOf) -> None:
    """Counts the dimensions of a write as they will be."""
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    table, rows, made = (becoming(sizes_of(v)) for v in op.operands)
    op.attributes["scatter_dimension_numbers"] = hlo.ScatterDimensionNumbers.get(
        update_window_dims=flat(made[d] for d in numbers.update_window_dims),
        inserted_window_dims=flat(table[d] for d in numbers.inserted_window_dims),
        input_batching_dims=flat(table[d] for d in numbers.input_batching_dims),
        scatter_indices_batching_dims=flat(rows[d] for d in numbers.scatter_indices_batching_dims),
        scattered_dims_to_operand_dims=flat(
            table[d] for d in numbers.scattered_dims_to_operand_dims
        ),
        index_vector_dim=_vector(rows, numbers.index_vector_dim),
    )


def _vector(rows: list[list[int]], dim: int) -> int:
    """Returns the new `index_vector_dim`; one past the last dimension if each index is alone."""
    return [*rows, [len(flat(rows))]][dim][0]
