"""Cheapest resharding: Dijkstra's search over sequences of steps, by the bytes that they send.

If a reshard takes two collectives or more, their order matters, and so do the axes moved together.
From `P(x, y)` to `P(y, x)`, one permutation or three exchanges do; gathering first would send the
most. The nodes are the layouts that the value can have on the way. No axis is added that is not
wanted in the end.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator

from partita.mesh import Mesh
from partita.program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    REDUCE_SCATTER,
    SLICE,
    CollectiveKind,
)
from partita.program.ir import TensorType
from partita.spmd.steps import Step
from partita.tiling import Axes, Layout, local_type

_State = tuple[Layout, frozenset[int]]
"""A layout, and the axes over which the value is unreduced."""

_Move = tuple[CollectiveKind, Axes, int, int, _State]
"""Kind of step, axes, dimension, the one that all_to_all splits or -1, and the state after."""


def step(
    type_: TensorType,
    mesh: Mesh,
    kind: CollectiveKind,
    axes: Axes,
    dims: tuple[int, int],
    layouts: tuple[Layout, Layout],
    combine: str,
) -> Step:
    """Returns one resharding step of a value.

    Args:
      type_: the type of the unsharded value.
      mesh: the mesh.
      kind: the collective, or slice, along `axes`.
      axes: the axes.
      dims: the dimension, and the one that all_to_all splits; -1 if there is none.
      layouts: before and after.
      combine: the operation that combines unreduced values.
    """
    before, after = (local_type(type_, layout, mesh) for layout in layouts)
    if not type_.elements:
        kind = SLICE  # nothing to exchange either
    moved = layouts if kind is COLLECTIVE_PERMUTE or not type_.elements else ()
    return Step(kind.name, axes, *dims, before, after, combine, layouts=moved)


def cheapest(
    type_: TensorType,
    have: Layout,
    unreduced: frozenset[int],
    want: Layout,
    mesh: Mesh,
    combine: str,
    latency_bytes: int,
    less_than: float,
) -> tuple[Step, ...] | None:
    """Returns the steps that send the least, or None if that is not below `less_than` bytes.

    Each collective counts `latency_bytes` more.
    """
    wanted = frozenset(axis for axes in want for axis in axes)
    start, end = (have, unreduced), (want, frozenset[int]())
    best: dict[_State, float] = {start: 0.0}
    came: dict[_State, tuple[_State, _Move]] = {}
    count = itertools.count()
    queue = [(0.0, next(count), start)]
    while queue:
        sent, _, state = heapq.heappop(queue)
        if state == end:
            break
        if sent > best[state]:
            continue
        shard = local_type(type_, state[0], mesh).bytes
        for move in _moves(type_, state, wanted, mesh):
            kind, axes, _, _, after = move
            more = 0.0
            if kind is not SLICE:
                payload = shard * (mesh.size(axes) if kind is ALL_GATHER else 1)
                more = latency_bytes + kind.sent(payload, mesh.size(axes))
            if sent + more < best.get(after, less_than):
                best[after], came[after] = sent + more, (state, move)
                heapq.heappush(queue, (sent + more, next(count), after))
    if end not in came:
        return None
    steps, state = [], end
    while state != start:
        before, (kind, axes, dim, split, _) = came[state]
        layouts = (before[0], state[0])
        steps.append(step(type_, mesh, kind, axes, (dim, split), layouts, combine))
        state = before
    return tuple(reversed(steps))


def _moves(type_: TensorType, state: _State, wanted: frozenset[int], mesh: Mesh) -> Iterator[_Move]:
    """Yields every step from a layout."""
    layout, unreduced = state
    used = frozenset(axis for axes in layout for axis in axes)

    def put(dim: int, axes: Axes, into: Layout = layout) -> Layout | None:
        """Returns the layout with more axes along a dimension, if that divides."""
        new = (*into[dim], *axes)
        fits = type_.shape[dim] % mesh.size(new) == 0
        return (*into[:dim], new, *into[dim + 1 :]) if fits else None

    for dim, axes in enumerate(layout):
        for kind, free in (
            (SLICE, wanted - used - unreduced),
            (REDUCE_SCATTER, unreduced & wanted),
        ):
            for run in _runs(free):
                if grown := put(dim, run):
                    yield kind, run, dim, -1, (grown, unreduced - {*run})
        for at in range(len(axes)):
            run = axes[at:]
            rest = (*layout[:dim], axes[:at], *layout[dim + 1 :])
            yield ALL_GATHER, run, dim, -1, (rest, unreduced)
            for other in range(len(layout)):
                if other != dim and (moved := put(other, run, rest)):
                    yield ALL_TO_ALL, run, dim, other, (moved, unreduced)
    for count in range(1, len(unreduced) + 1):
        for run in itertools.combinations(sorted(unreduced), count):
            yield ALL_REDUCE, run, -1, -1, (layout, unreduced - {*run})
    sizes = tuple(mesh.size(axes) for axes in layout)
    for new in _of_sizes(sizes, (used | wanted) - unreduced, mesh):
        if new != layout:
            changed = {a for x, y in zip(layout, new, strict=True) if x != y for a in (*x, *y)}
            yield COLLECTIVE_PERMUTE, tuple(sorted(changed)), -1, -1, (new, unreduced)


@functools.cache
def _runs(axes: frozenset[int]) -> tuple[Axes, ...]:
    """Returns every ordered choice of one axis or more."""
    return tuple(
        run for n in range(1, len(axes) + 1) for run in itertools.permutations(sorted(axes), n)
    )


@functools.cache
def _of_sizes(sizes: tuple[int, ...], axes: frozenset[int], mesh: Mesh) -> tuple[Layout, ...]:
    """Returns every layout over some of the axes with these numbers of shards."""
    if not sizes:
        return ((),)
    return tuple(
        (run, *rest)
        for run in (((), *_runs(axes)) if sizes[0] > 1 else ((),))
        if mesh.size(run) == sizes[0]
        for rest in _of_sizes(sizes[1:], axes - {*run}, mesh)
    )
