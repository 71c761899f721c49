"""Steps by which each device gets the window that it reads of a sharded dimension."""

from __future__ import annotations

import dataclasses

from partita.mesh import Mesh
from partita.program.collectives import ALL_GATHER, COLLECTIVE_PERMUTE, SLICE
from partita.program.ir import TensorType
from partita.program.rule import Reach
from partita.spmd.exchange import Window, exchange, gathered
from partita.spmd.steps import Step
from partita.tiling import Axes


def window_steps(
    shard: TensorType, dim: int, reach: Reach, size: int, axes: Axes, mesh: Mesh
) -> tuple[tuple[Step, ...], ...]:
    """Returns two alternatives: shards exchange the missing blocks, or everything is gathered.

    Args:
      shard: the type of a shard.
      dim: the dimension.
      reach: its windows.
      size: the size of the dimension.
      axes: the axes that split it.
      mesh: the mesh of these axes.
    """
    return (
        _exchanged(shard, dim, reach, size, axes, mesh),
        _gathered(shard, dim, reach, size, axes, mesh),
    )


def _exchanged(
    shard: TensorType, dim: int, reach: Reach, size: int, axes: Axes, mesh: Mesh
) -> tuple[Step, ...]:
    sends, window = exchange(reach, size, mesh.size(axes))
    made = _resized(shard, dim, window.size)
    if not shard.elements or not made.elements:
        return _cut(shard, made, dim, window, axes)
    steps: list[Step] = []
    for send in sends:
        wider = _resized(shard, dim, shard.shape[dim] + send.size)
        steps.append(Step(COLLECTIVE_PERMUTE.name, axes, dim, -1, shard, wider, send=send))
        shard = wider
    if not steps:
        return _cut(shard, made, dim, window, axes)
    steps[-1] = dataclasses.replace(steps[-1], after=made, window=window)
    return tuple(steps)


def _gathered(
    shard: TensorType, dim: int, reach: Reach, size: int, axes: Axes, mesh: Mesh
) -> tuple[Step, ...]:
    count = mesh.size(axes)
    whole = _resized(shard, dim, shard.shape[dim] * count)
    window = gathered(reach, size, count)
    gather = Step(ALL_GATHER.name, axes, dim, -1, shard, whole)
    return gather, *_cut(whole, _resized(shard, dim, window.size), dim, window, axes)


def _cut(
    before: TensorType, after: TensorType, dim: int, window: Window, axes: Axes
) -> tuple[Step, ...]:
    """Returns the step that puts a window together from what a device holds, if it takes any."""
    if window.parts == ((0, before.shape[dim]),):
        return ()
    return (Step(SLICE.name, axes, dim, -1, before, after, window=window),)


def _resized(type_: TensorType, dim: int, size: int) -> TensorType:
    return TensorType((*type_.shape[:dim], size, *type_.shape[dim + 1 :]), type_.dtype)
