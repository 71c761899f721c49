"""Resharding: the collectives that bring a value from one layout to another.

| from -> to | step |
|---|---|
| sharded -> replicated | all_gather |
| unreduced -> replicated | all_reduce |
| unreduced -> sharded | reduce_scatter |
| sharded dimension i -> dimension j | all_to_all |
| replicated -> sharded | slice (local, no traffic) |
| replicated -> unreduced | mask (local, no traffic) |
| sharded -> as many shards, by other axes or in another order | collective_permute |
| sharded -> windows that reach into other shards | collective_permute, one or several |

Every step moves as little as it can: steps that shrink the local shard come first, then those that
exchange shards, then those that enlarge them. Axes that go the same way share one collective. If a
reshard takes several collectives, the cheapest sequence of all is searched for
(`cheapest_reshard`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from partita.mesh import Mesh
from partita.program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    MASK,
    REDUCE_SCATTER,
    SLICE,
    CollectiveKind,
)
from partita.program.ir import TensorType
from partita.program.rule import Halo
from partita.spmd import cheapest_reshard
from partita.spmd.steps import Step
from partita.spmd.windows import window_steps
from partita.tiling import Axes, Layout, local_type


@functools.cache
def reshard(
    type_: TensorType,
    have: Layout,
    unreduced: frozenset[int],
    want: Layout,
    mesh: Mesh,
    combine: str = "add",
    halo: Halo = (),
    latency_bytes: int = 0,
    masked: frozenset[int] = frozenset(),
) -> tuple[Step, ...]:
    """Returns the steps from layout `have`, unreduced over `unreduced`, to the layout `want`.

    In the end the value is also made unreduced over the axes `masked`.
    With a halo, each device then gets the window that it reads. It is sent by the devices that have
    it, or cut out of the gathered value where that is less traffic.
    A sequence with one more collective is chosen only if it saves `latency_bytes`.
    """

    def real(axes: Axes) -> Axes:
        """Drops axes of one device, along which nothing has to be done."""
        return tuple(axis for axis in axes if mesh.sizes[axis] > 1)

    wanted = tuple(real(axes) for axes in want)
    start = [real(axes) for axes in have]
    left = frozenset(real(tuple(unreduced)))
    steps = _Path(type_, start, wanted, mesh, combine).walk(set(left))
    if sum(step.is_collective for step in steps) > 1 or _roundabout(steps, wanted):
        sent = traffic(steps, mesh, latency_bytes)
        less = cheapest_reshard.cheapest(
            type_, tuple(start), left, wanted, mesh, combine, latency_bytes, sent
        )
        steps = less or steps
    shard = local_type(type_, wanted, mesh)
    if over := real(tuple(sorted(masked))):
        steps += (Step(MASK.name, over, -1, -1, shard, shard),)
    for dim, reach in enumerate(halo):
        # Dimension by dimension: later windows contain earlier ones, which makes corners right.
        if reach is not None:
            options = window_steps(shard, dim, reach, type_.shape[dim], wanted[dim], mesh)
            found = min(options, key=lambda way: traffic(way, mesh, latency_bytes))
            steps += found
            shard = found[-1].after if found else shard
    return steps


class _Path:
    """A value during a reshard: its current layout, and the steps taken so far.

    Axes that block others still to be added are gathered.
    """

    def __init__(
        self,
        type_: TensorType,
        have: Sequence[Axes],
        want: Layout,
        mesh: Mesh,
        combine: str,
    ) -> None:
        self.type = type_
        self.layout = list(have)
        self.want = want
        self.mesh = mesh
        self.combine = combine
        self.steps: list[Step] = []
        self.place = {axis: dim for dim, axes in enumerate(want) for axis in axes}
        """Dimension in which each axis is wanted."""
        self.dims = range(len(want))

    def walk(self, unreduced: set[int]) -> tuple[Step, ...]:
        """Returns all steps, from a value unreduced over some axes; tries cheap ones first."""
        self.unreduced = unreduced
        while unreduced or tuple(self.layout) != self.want:
            went = (
                self._slice(self._next)
                or self._scatter(self._next)
                or self._exchange()
                or self._swap()
                or self._reduce()
                or self._gather()
            )
            if not went:
                raise AssertionError(f"no way from {self.layout} to {self.want}")
        return tuple(self.steps)

    def _next(self, dim: int) -> Axes:
        """Returns the axes still to be added to a dimension; none if others have to go first."""
        have, want = self.layout[dim], self.want[dim]
        return want[len(have) :] if want[: len(have)] == have else ()

    def _slice(self, candidates: Callable[[int], Axes]) -> bool:
        """Slices the shard along every dimension that can be: free, and shrinks all later steps."""
        held, done = self._used() | self.unreduced, False
        for dim in self.dims:
            run = candidates(dim)
            if run and run[0] not in held:
                done |= self._grow(SLICE, dim, _start(run, lambda axis: axis not in held))
        return done

    def _scatter(self, candidates: Callable[[int], Axes]) -> bool:
        """Reduces over axes along which the result is wanted sharded."""
        unreduced = self.unreduced
        for dim in self.dims if unreduced else ():
            run = candidates(dim)
            if run and run[0] in unreduced:
                run = _start(run, unreduced.__contains__)
                if self._grow(REDUCE_SCATTER, dim, run):
                    unreduced.difference_update(run)
                    return True
        return False

    def _grow(self, kind: CollectiveKind, dim: int, run: Axes) -> bool:
        """Splits a dimension by more axes, if it divides."""
        layout = list(self.layout)
        layout[dim] = (*layout[dim], *run)
        if not self._divides(layout):
            return False
        self._step(kind, run, dim, -1, layout)
        return True

    def _exchange(self) -> bool:
        """Moves axes to the dimension that needs them next, with any axes to be gathered."""
        for source, axes in enumerate(self.layout):
            for target in self.dims if axes else ():
                run = self._next(target)
                if target == source or not run or run[0] not in axes:
                    continue
                moved = axes[axes.index(run[0]) :]
                fits = _common(moved, run)
                if fits == len(moved) and self._join(source, run[fits:]):
                    return True
                behind = any(a in self.place for a in moved[fits:])
                if not behind and self._move(source, target, moved):
                    return True
        return False

    def _join(self, source: int, following: Axes) -> bool:
        """Adds axes that are wanted after those about to move, so that they move together."""

        def behind(dim: int) -> Axes:
            return following if dim == source else ()

        return self._slice(behind) or self._scatter(behind)

    def _move(self, source: int, target: int, axes: Axes) -> bool:
        layout = list(self.layout)
        layout[source] = layout[source][: -len(axes)]
        layout[target] = (*layout[target], *axes)
        if not self._divides(layout):
            return False
        self._step(ALL_TO_ALL, axes, source, target, layout)
        return True

    def _swap(self) -> bool:
        """Permutes shards unchanged, if the wanted shards have the same shape."""
        sizes = zip(self.layout, self.want, strict=True)
        alike = all(self.mesh.size(a) == self.mesh.size(b) for a, b in sizes)
        if not alike or self.unreduced & self.place.keys():
            return False
        return self._permute(list(self.want))

    def _permute(self, layout: list[Axes]) -> bool:
        if layout == self.layout:
            return False
        changed = [{*a, *b} for a, b in zip(self.layout, layout, strict=True) if a != b]
        axes = tuple(sorted(set[int]().union(*changed)))
        self._step(COLLECTIVE_PERMUTE, axes, -1, -1, layout)
        return True

    def _reduce(self) -> bool:
        if not self.unreduced:
            return False
        self._step(ALL_REDUCE, tuple(sorted(self.unreduced)), -1, -1, list(self.layout))
        self.unreduced.clear()
        return True

    def _gather(self) -> bool:
        """Gathers a dimension: first one whose axes are wanted nowhere, if any."""
        rest = {d: a[_common(a, self.want[d]) :] for d, a in enumerate(self.layout)}
        surplus = [d for d, axes in rest.items() if axes]
        if not surplus:
            return False
        dim = min(surplus, key=lambda d: not self.place.keys().isdisjoint(rest[d]))
        layout = list(self.layout)
        layout[dim] = layout[dim][: -len(rest[dim])]
        self._step(ALL_GATHER, rest[dim], dim, -1, layout)
        return True

    def _used(self) -> set[int]:
        return {axis for axes in self.layout for axis in axes}

    def _divides(self, layout: Sequence[Axes]) -> bool:
        sizes = zip(self.type.shape, layout, strict=True)
        return all(size % self.mesh.size(axes) == 0 for size, axes in sizes)

    def _step(
        self, kind: CollectiveKind, axes: Axes, dim: int, split: int, layout: list[Axes]
    ) -> None:
        layouts = (tuple(self.layout), tuple(layout))
        self.steps.append(
            cheapest_reshard.step(
                self.type, self.mesh, kind, axes, (dim, split), layouts, self.combine
            )
        )
        self.layout = layout


def _roundabout(steps: Sequence[Step], want: Layout) -> bool:
    """Returns whether steps replicate the value along axes by which it is wanted sharded."""
    wanted = {axis for axes in want for axis in axes}
    collectives = 0
    for step in steps:
        if collectives and step.kind == SLICE.name:
            return True
        collectives += step.kind != SLICE.name
        if step.kind == ALL_REDUCE.name and not wanted.isdisjoint(step.axes):
            return True
    return False


def traffic(steps: Sequence[Step], mesh: Mesh, latency_bytes: int) -> float:
    """Returns the bytes that a device sends, on rings, plus `latency_bytes` for each collective."""
    total = float(latency_bytes * sum(step.is_collective for step in steps))
    for step in steps:
        total += step.collective.sent(step.bytes, mesh.size(step.axes))
    return total


def _start(run: Axes, condition: Callable[[int], bool]) -> Axes:
    return run[: next((i for i, axis in enumerate(run) if not condition(axis)), len(run))]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def shards(layout: Layout, mesh: Mesh) -> int:
    """Returns the number of shards into which a layout splits a value."""
    return math.prod(mesh.size(axes) for axes in layout)
