"""How a value gets from the layout it has to the layout it needs: the collectives in between.

| from -> to | step |
|---|---|
| sharded -> replicated | all_gather |
| partial -> replicated | all_reduce |
| partial -> sharded | reduce_scatter |
| sharded dimension i -> dimension j | all_to_all |
| replicated -> sharded | slice (local, no traffic) |
| sharded -> sharded as much, by other axes or in another order | collective_permute |
| sharded -> sharded, with the rim of neighbouring pieces | collective_permute |

Steps that shrink the local piece come first, then those that exchange pieces, then those that
enlarge them, so that every step moves as little as it can. What one collective can do is one step:
axes that go the same way go together. Nothing is gathered that an exchange can bring.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from partita.mesh import Mesh
from partita.program.ir import Halo, TensorType
from partita.tiling import Axes, Layout, local_type

StepKind = Literal[
    "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute", "slice"
]

COLLECTIVES: tuple[StepKind, ...] = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
)


LATENCY = 2**16
"""Bytes that networks of today move in the time that any collective takes: of two ways, the one
with a collective more has to save as many."""


@dataclasses.dataclass(frozen=True, slots=True)
class HaloExchange:
    """What a collective_permute hands to a neighbour: `size` indices from `start` on."""

    start: int
    size: int
    after: bool
    """Whether it goes to the device before, for which it comes after its own piece."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a reshard, on the device-local piece of a value."""

    kind: StepKind
    axes: Axes
    dim: int
    """Dimension gathered, scattered or sliced (all_to_all: gathered); -1 for all_reduce."""
    split: int
    """Dimension that all_to_all splits, else -1."""
    before: TensorType
    """Local type before the step."""
    after: TensorType
    """Local type after the step."""
    combine: str = "add"
    rim: HaloExchange | None = None
    """Of a collective_permute, what is handed on if not all of the piece."""
    layouts: tuple[Layout, ...] = ()
    """Of a collective_permute that hands on whole pieces, the layouts before and after."""

    @property
    def bytes(self) -> int:
        """Payload per device in bytes: the larger of what goes in and what comes out."""
        if self.rim is not None:
            return self.before.bytes * self.rim.size // self.before.shape[self.dim]
        return max(self.before.bytes, self.after.bytes)

    def applied(self, layout: Layout) -> Layout:
        """The layout of a value after the step, given that before it."""
        if self.layouts:
            return self.layouts[1]
        after = list(layout)
        if self.kind in ("all_gather", "all_to_all"):
            after[self.dim] = tuple(axis for axis in layout[self.dim] if axis not in self.axes)
        if self.kind == "all_to_all":
            after[self.split] = (*layout[self.split], *self.axes)
        if self.kind in ("slice", "reduce_scatter") and self.dim >= 0:
            after[self.dim] = (*layout[self.dim], *self.axes)
        return tuple(after)

    @property
    def is_collective(self) -> bool:
        """Whether devices exchange data."""
        return self.kind != "slice" and bool(self.axes)


@functools.cache
def reshard(
    type_: TensorType,
    have: Layout,
    partial: frozenset[int],
    want: Layout,
    mesh: Mesh,
    combine: str = "add",
    halo: Halo = (),
) -> tuple[Step, ...]:
    """The steps from layout `have`, partial over the axes `partial`, to the full layout `want`.

    With a halo, what neighbouring devices have at the rims of their pieces comes to each piece.
    """

    def real(axes: Axes) -> Axes:
        """Along an axis of one device there is nothing to do."""
        return tuple(axis for axis in axes if mesh.sizes[axis] > 1)

    wanted = tuple(real(axes) for axes in want)
    start = [real(axes) for axes in have]
    path = functools.partial(_Path, type_, start, wanted, mesh, combine)
    steps = path().walk(set(real(tuple(partial))))
    if _roundabout(steps, wanted):
        turned = path(turns=True).walk(set(real(tuple(partial))))
        steps = min(steps, turned, key=lambda way: traffic(way, mesh))
    return steps + _rims(local_type(type_, wanted, mesh), wanted, halo)


def _rims(piece: TensorType, layout: Layout, halo: Halo) -> tuple[Step, ...]:
    """Steps that add to a piece the rims of its neighbours, zeros where there is none.

    Dimension by dimension: later rims contain earlier ones, which makes the corners right.
    """
    steps = []
    for dim, reach in enumerate(halo):
        own = piece.shape[dim]
        for after, size in ((True, reach[1]), (False, reach[0])):
            if size:
                shape = list(piece.shape)
                shape[dim] += size
                wider = TensorType(tuple(shape), piece.dtype)
                rim = HaloExchange(0 if after else own - size, size, after)
                kind: StepKind = "collective_permute"
                steps.append(Step(kind, layout[dim], dim, -1, piece, wider, rim=rim))
                piece = wider
    return tuple(steps)


class _Path:
    """A value on its way: its current layout, and the steps taken so far.

    With `turns`, axes are also added where others should have gone before, and put in order by a
    permutation; without, what is in their way is gathered.
    """

    def __init__(
        self,
        type_: TensorType,
        have: Sequence[Axes],
        want: Layout,
        mesh: Mesh,
        combine: str,
        turns: bool = False,
    ) -> None:
        self.type = type_
        self.layout = list(have)
        self.want = want
        self.mesh = mesh
        self.combine = combine
        self.turns = turns
        self.steps: list[Step] = []
        self.place = {axis: dim for dim, axes in enumerate(want) for axis in axes}
        """The dimension where each axis is wanted."""
        self.dims = range(len(want))

    def walk(self, partial: set[int]) -> tuple[Step, ...]:
        """All the way, from a value partial over some axes; tries the cheapest steps first."""
        self.partial, turns = partial, self.turns
        while partial or tuple(self.layout) != self.want:
            went = (
                self._slice(self._next)
                or (turns and self._slice(self._behind))
                or self._scatter(self._next)
                or self._exchange()
                or self._swap()
                or (turns and self._turn())
                or self._reduce()
                or self._gather()
            )
            assert went, f"no way from {self.layout} to {self.want}"
        return tuple(self.steps)

    def _turn(self) -> bool:
        return self._scatter(self._behind) or self._exchange_behind() or self._arrange()

    def _next(self, dim: int) -> Axes:
        """Axes still to be added to a dimension; none if others have to go first."""
        have, want = self.layout[dim], self.want[dim]
        return want[len(have) :] if want[: len(have)] == have else ()

    def _behind(self, dim: int) -> Axes:
        """Axes to be added that others should have gone before; those that cost nothing first."""
        used = self._used()
        missing = tuple(a for a in self.want[dim] if a not in used)
        return tuple(a for a in missing if a not in self.partial) or missing

    def _slice(self, candidates: Callable[[int], Axes]) -> bool:
        """Cuts the piece along every dimension that can be: free, and all that follows is less."""
        held, done = self._used() | self.partial, False
        for dim in self.dims:
            run = candidates(dim)
            if run and run[0] not in held:
                done |= self._grow("slice", dim, _start(run, lambda axis: axis not in held))
        return done

    def _scatter(self, candidates: Callable[[int], Axes]) -> bool:
        """Adds up along axes by which the result is wanted split."""
        partial = self.partial
        for dim in self.dims if partial else ():
            run = candidates(dim)
            if run and run[0] in partial:
                run = _start(run, partial.__contains__)
                if self._grow("reduce_scatter", dim, run):
                    partial.difference_update(run)
                    return True
        return False

    def _grow(self, kind: StepKind, dim: int, run: Axes) -> bool:
        """Splits a dimension by more axes, if it divides."""
        layout = list(self.layout)
        layout[dim] = (*layout[dim], *run)
        if not self._divides(layout):
            return False
        self._step(kind, run, dim, -1, layout)
        return True

    def _exchange(self) -> bool:
        """Moves axes to the dimension that needs them next, and with them any to be gathered."""
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
        """Adds axes to those that are about to move, where these are to go first."""

        def behind(dim: int) -> Axes:
            return following if dim == source else ()

        return self._slice(behind) or self._scatter(behind)

    def _exchange_behind(self) -> bool:
        """Moves axes to the dimension that needs them, behind others that have to go first."""
        for source, axes in enumerate(self.layout):
            target = self.place.get(axes[-1], source) if axes else source
            if target != source:
                stay = [i for i, a in enumerate(axes) if self.place.get(a) != target]
                if self._move(source, target, axes[stay[-1] + 1 if stay else 0 :]):
                    return True
        return False

    def _move(self, source: int, target: int, axes: Axes) -> bool:
        layout = list(self.layout)
        layout[source] = layout[source][: -len(axes)]
        layout[target] = (*layout[target], *axes)
        if not self._divides(layout):
            return False
        self._step("all_to_all", axes, source, target, layout)
        return True

    def _swap(self) -> bool:
        """Hands whole pieces on, if the wanted ones are as large."""
        sizes = zip(self.layout, self.want, strict=True)
        alike = all(self.mesh.size(a) == self.mesh.size(b) for a, b in sizes)
        if not alike or self.partial & self.place.keys():
            return False
        return self._permute(list(self.want))

    def _arrange(self) -> bool:
        """Brings axes into order: those that stay, those to be gathered, those to be moved."""

        def rank(dim: int, axis: int) -> tuple[int, int]:
            place = self.place.get(axis)
            return (0, self.want[dim].index(axis)) if place == dim else (1 + (place is not None), 0)

        return self._permute(
            [tuple(sorted(a, key=lambda x: rank(d, x))) for d, a in enumerate(self.layout)]
        )

    def _permute(self, layout: list[Axes]) -> bool:
        if layout == self.layout:
            return False
        changed = [{*a, *b} for a, b in zip(self.layout, layout, strict=True) if a != b]
        axes = tuple(sorted(set[int]().union(*changed)))
        self._step("collective_permute", axes, -1, -1, layout)
        return True

    def _reduce(self) -> bool:
        if not self.partial:
            return False
        self._step("all_reduce", tuple(sorted(self.partial)), -1, -1, list(self.layout))
        self.partial.clear()
        return True

    def _gather(self) -> bool:
        """Makes a dimension whole; first one whose axes are wanted nowhere, so need not move."""
        rest = {d: a[_common(a, self.want[d]) :] for d, a in enumerate(self.layout)}
        surplus = [d for d, axes in rest.items() if axes]
        if not surplus:
            return False
        dim = min(surplus, key=lambda d: not self.place.keys().isdisjoint(rest[d]))
        layout = list(self.layout)
        layout[dim] = layout[dim][: -len(rest[dim])]
        self._step("all_gather", rest[dim], dim, -1, layout)
        return True

    def _used(self) -> set[int]:
        return {axis for axes in self.layout for axis in axes}

    def _divides(self, layout: Sequence[Axes]) -> bool:
        sizes = zip(self.type.shape, layout, strict=True)
        return all(size % self.mesh.size(axes) == 0 for size, axes in sizes)

    def _step(self, kind: StepKind, axes: Axes, dim: int, split: int, layout: list[Axes]) -> None:
        layouts: tuple[Layout, ...] = ()
        if not self.type.elements:
            kind = "slice"  # nothing to exchange either
        elif kind == "collective_permute":
            layouts = (tuple(self.layout), tuple(layout))
        before = local_type(self.type, tuple(self.layout), self.mesh)
        after = local_type(self.type, tuple(layout), self.mesh)
        self.steps.append(
            Step(kind, axes, dim, split, before, after, self.combine, layouts=layouts)
        )
        self.layout = layout


def _roundabout(steps: Sequence[Step], want: Layout) -> bool:
    """Whether something was whole on the way along axes by which it is wanted split."""
    wanted = {axis for axes in want for axis in axes}
    collectives = 0
    for step in steps:
        if collectives and step.kind == "slice":
            return True
        collectives += step.kind != "slice"
        if step.kind == "all_reduce" and not wanted.isdisjoint(step.axes):
            return True
    return False


def traffic(steps: Sequence[Step], mesh: Mesh) -> float:
    """Bytes that a device sends, on rings, and for each collective what it could send meanwhile."""
    total = float(LATENCY * sum(step.is_collective for step in steps))
    for step in steps:
        if step.kind == "collective_permute":
            total += step.bytes
        elif step.is_collective:
            passes = 2 if step.kind == "all_reduce" else 1
            total += passes * step.bytes * (1 - 1 / mesh.size(step.axes))
    return total


@functools.cache
def permutation(mesh: Mesh, before: Layout, after: Layout) -> list[tuple[int, int]]:
    """Who sends its piece to whom, as pairs of devices, where pieces are as large before as after.

    Where several devices have a piece that several need, those that agree in the most axes get
    together; each sends once and receives once.
    """
    places = np.indices(mesh.sizes).reshape(len(mesh.sizes), -1)

    def pieces(layout: Layout) -> np.ndarray:
        number = np.zeros(mesh.devices, np.int64)
        for axes in layout:
            for axis in axes:
                number = number * mesh.sizes[axis] + places[axis]
        return number

    have, need = pieces(before), pieces(after)
    pairs = []
    for piece in range(int(have.max()) + 1):
        senders, receivers = np.flatnonzero(have == piece), np.flatnonzero(need == piece)
        stay = np.intersect1d(senders, receivers)
        pairs += [(int(d), int(d)) for d in stay]
        rest = (np.setdiff1d(side, stay).tolist() for side in (senders, receivers))
        pairs += zip(*rest, strict=True)
    return sorted(pairs)


def _start(run: Axes, condition: Callable[[int], bool]) -> Axes:
    return run[: next((i for i, axis in enumerate(run) if not condition(axis)), len(run))]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def shards(layout: Layout, mesh: Mesh) -> int:
    """Into how many pieces a layout splits a value."""
    return math.prod(mesh.size(axes) for axes in layout)
