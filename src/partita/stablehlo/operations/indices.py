"""Indices at which operations read or write: their types, bounds and components."""

from __future__ import annotations

from typing import Any

from partita.stablehlo.builder import Builder
from partita.stablehlo.building import i64
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir

WINDOWS = "{} reads or writes windows along this dimension"
"""Reason why such a dimension is not sharded."""


def clamped(start: Any, last: int, build: Builder, first: int = 0) -> Any:
    """Indices, moved to between `first` and `last`."""
    return hlo.clamp(build.fill(start.type, first), start, build.fill(start.type, last))


def wide(indices: Any) -> Any:
    """Indices in a type that holds every offset: 32 bits at least."""
    type_ = ir.RankedTensorType(indices.type)
    if ir.IntegerType(type_.element_type).width >= 32:
        return indices
    i32 = ir.IntegerType.get_signless(32)
    return hlo.convert(ir.RankedTensorType.get(list(type_.shape), i32), indices)


def signed(indices: Any) -> Any:
    """Indices in a type that holds every offset, and differences."""
    indices = wide(indices)
    type_ = ir.RankedTensorType(indices.type)
    element = ir.IntegerType(type_.element_type)
    if not element.is_unsigned:
        return indices
    same = ir.IntegerType.get_signless(element.width)
    return hlo.convert(ir.RankedTensorType.get(list(type_.shape), same), indices)


def shift_indices(
    indices: Any,
    vector: int,
    split: dict[int, int],
    run: LocalRun,
    build: Builder,
    clamp_to: dict[int, int] | None = None,
) -> tuple[Any, Any]:
    """Returns index vectors relative to this device's shard, and a mask of those inside it.

    Components along unsplit dimensions stay. With `clamp_to`, indices are first clamped to the
    global operand's size, as gather clamps those that are out of bounds.
    """
    indices = wide(indices)
    type_ = ir.RankedTensorType(indices.type)
    scalar = ir.RankedTensorType.get([], type_.element_type)
    inside: Any = None
    for place, dim in split.items():
        here = _is_component(indices, place, vector, build)
        if clamp_to is not None:
            low, high = build.fill(type_, 0), build.fill(type_, clamp_to[dim] - 1)
            indices = hlo.select(here, hlo.clamp(low, indices, high), indices)
        shard = run.inputs[0].shape[dim]
        offset = hlo.convert(scalar, build.offset(run.needs[0][dim], shard))
        shifted = hlo.subtract(indices, build.propagation(offset, indices))
        fits = hlo.and_(
            build.compare(shifted, build.fill(type_, 0), "GE"),
            build.compare(shifted, build.fill(type_, shard), "LT"),
        )
        fits = hlo.or_(fits, hlo.not_(here))
        inside = fits if inside is None else hlo.and_(inside, fits)
        indices = hlo.select(here, shifted, indices)
    if vector < len(type_.shape):
        inside = build.total(inside, vector, "and")
    return indices, inside


def _is_component(indices: Any, place: int, vector: int, build: Builder) -> Any:
    """A mask of one component of index vectors."""
    type_ = ir.RankedTensorType(indices.type)
    if vector == len(type_.shape):
        return build.compare(build.fill(type_, 0), build.fill(type_, place), "EQ")
    return build.compare(hlo.iota(type_, i64(vector)), build.fill(type_, place), "EQ")


def component(indices: Any, place: int, vector: int, build: Builder) -> tuple[Any, Any]:
    """One component of index vectors, and a mask of it in them."""
    here = _is_component(indices, place, vector, build)
    type_ = ir.RankedTensorType(indices.type)
    if vector == len(type_.shape):
        return indices, here
    starts, limits = [0] * len(type_.shape), list(type_.shape)
    starts[vector], limits[vector] = place, place + 1
    steps = [1] * len(starts)
    cut = hlo.slice(indices, *map(ir.DenseI64ArrayAttr.get, (starts, limits, steps)))
    shape = [size for dim, size in enumerate(type_.shape) if dim != vector]
    return hlo.reshape(ir.RankedTensorType.get(shape, type_.element_type), cut), here


def along_vector(value: Any, indices: Any, vector: int) -> Any:
    """Broadcasts a value per index vector to each of its components."""
    shape = list(ir.RankedTensorType(indices.type).shape)
    dims = [d for d in range(len(shape)) if d != vector]
    result = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    return hlo.broadcast_in_dim(result, value, ir.DenseI64ArrayAttr.get(dims))
