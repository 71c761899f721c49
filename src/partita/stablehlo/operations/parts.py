"""Windows written to a sharded dimension: each device writes the part in its shard.

A device writes a window of its shard, as wide as the global one, or the whole shard if that is
narrower. It is at the window's place, or at the nearest end of the shard. The part of the update
that falls into the shard is moved to its place; the rest is written back unchanged. So arrays are
updated in place, and no data is exchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partita.stablehlo.builder import Builder
from partita.stablehlo.building import i64
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.indices import clamped


@dataclasses.dataclass(frozen=True)
class Part:
    """Parts that a device writes instead of the windows, along one dimension."""

    dim: int
    """Dimension of the windows."""
    window: int
    """Width of each window."""
    start: Any
    """Start of the part in the shard: a tensor of integers, one for each window."""
    shift: Any
    """The index of the window that comes there first; negative if that is before its first."""
    width: int


def part_of(
    build: Builder, dim: int, start: Any, window: int, offset: Any, shard: int, last: int | None
) -> Part:
    """The parts of windows that a device writes.

    Args:
      build: at the place where they are written.
      dim: the dimension of the windows.
      start: where each window begins in all of the dimension, signed.
      window: its width.
      offset: where the device's shard begins, a scalar.
      shard: its size.
      last: where windows may begin at most; those that begin elsewhere are not written. None if
        none does.
    """
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(start.type).element_type)
    local = hlo.subtract(start, build.propagation(hlo.convert(scalar, offset), start))
    width = min(window, shard)
    here = clamped(local, shard - width, build)
    shift = hlo.subtract(here, local)
    if last is not None:
        fits = build.compare(clamped(start, last, build), start, "EQ")
        shift = hlo.select(fits, shift, build.fill(shift.type, window))
    return Part(dim, window, here, shift, width)


def in_parts(
    build: Builder, update: Any, parts: Sequence[Part], batch: Sequence[int]
) -> tuple[Any, Any]:
    """Returns the parts of an update that a device writes, and a mask of the elements it must
    write.

    Args:
      build: builder at the insertion point.
      update: the windows.
      parts: the parts, for every dimension along which a device writes less than all.
      batch: the dimensions of the update that enumerate windows.
    """
    for part in parts:
        if part.window > 1:
            update = _moved(build, update, part, batch)
    shape = list(ir.RankedTensorType(update.type).shape)
    inside: Any = None
    for part in parts:
        element = ir.RankedTensorType(part.shift.type).element_type
        places = ir.RankedTensorType.get(shape, element)
        along = hlo.iota(places, i64(part.dim))
        shift = hlo.broadcast_in_dim(places, part.shift, ir.DenseI64ArrayAttr.get(list(batch)))
        index = hlo.add(along, shift)
        low = build.compare(index, build.fill(places, 0), "GE")
        there = hlo.and_(low, build.compare(index, build.fill(places, part.window), "LT"))
        inside = there if inside is None else hlo.and_(inside, there)
    return update, inside


def _moved(build: Builder, update: Any, part: Part, batch: Sequence[int]) -> Any:
    """Shifts an update to its place in a part; elements beyond the update's ends are undefined."""
    type_ = ir.RankedTensorType(update.type)
    shape, beyond = list(type_.shape), [0] * len(type_.shape)
    shape[part.dim] = beyond[part.dim] = part.width
    nothing = build.fill(ir.RankedTensorType.get([], type_.element_type), 0)
    widths = (ir.DenseI64ArrayAttr.get(each) for each in (beyond, beyond, [0] * len(shape)))
    wider = hlo.pad(update, nothing, *widths)
    within = clamped(part.shift, part.window, build, first=-part.width)
    at = hlo.add(within, build.fill(within.type, part.width))
    if not batch:
        zero = build.fill(at.type, 0)
        starts = [at if dim == part.dim else zero for dim in range(len(shape))]
        return hlo.dynamic_slice(wider, starts, ir.DenseI64ArrayAttr.get(shape))
    rank = len(batch)
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=[dim for dim in range(len(shape)) if dim not in batch],
        collapsed_slice_dims=[],
        operand_batching_dims=list(batch),
        start_indices_batching_dims=list(range(rank)),
        start_index_map=[part.dim],
        index_vector_dim=rank,
    )
    sizes = [1 if dim in batch else size for dim, size in enumerate(shape)]
    return hlo.gather(wider, at, numbers, ir.DenseI64ArrayAttr.get(sizes))
