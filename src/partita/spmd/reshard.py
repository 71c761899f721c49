"""How a value gets from the layout it has to the layout it needs: the collectives in between.

| from -> to | step |
|---|---|
| sharded -> replicated | all_gather |
| partial -> replicated | all_reduce |
| partial -> sharded | reduce_scatter |
| sharded dimension i -> dimension j | all_to_all |
| replicated -> sharded | slice (local, no traffic) |
| sharded -> sharded, with the rim of neighbouring pieces | collective_permute |

Steps that shrink the local piece come first, so that later ones move less.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal

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


@dataclasses.dataclass(frozen=True, slots=True)
class Rim:
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
    rim: Rim | None = None
    """Of a collective_permute, what is handed on."""

    @property
    def bytes(self) -> int:
        """Payload per device in bytes: the larger of what goes in and what comes out."""
        if self.rim is not None:
            return self.before.bytes * self.rim.size // self.before.shape[self.dim]
        return max(self.before.bytes, self.after.bytes)

    def applied(self, layout: Layout) -> Layout:
        """The layout of a value after the step, given that before it."""
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

    path = _Path(type_, [real(axes) for axes in have], mesh, combine)
    wanted = tuple(real(axes) for axes in want)
    steps = path.to(wanted, set(real(tuple(partial))))
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
                rim = Rim(0 if after else own - size, size, after)
                kind: StepKind = "collective_permute"
                steps.append(Step(kind, layout[dim], dim, -1, piece, wider, rim=rim))
                piece = wider
    return tuple(steps)


class _Path:
    """A value on its way: its current layout, and the steps taken so far."""

    def __init__(self, type_: TensorType, layout: list[Axes], mesh: Mesh, combine: str) -> None:
        self.type = type_
        self.layout = layout
        self.mesh = mesh
        self.combine = combine
        self.steps: list[Step] = []

    def to(self, want: Layout, partial: set[int]) -> tuple[Step, ...]:
        for dim in range(len(want)):
            run = self._missing(want, dim)
            scattered = run[: _prefix_in(run, partial)]
            if scattered:
                partial -= set(scattered)
                self._grow("reduce_scatter", dim, scattered)
        if partial:
            self._step("all_reduce", tuple(sorted(partial)), -1, -1, list(self.layout))
        while tuple(self.layout) != want:
            if not (self._slice(want) or self._exchange(want)):
                self._gather(want)
        return tuple(self.steps)

    def _missing(self, want: Layout, dim: int) -> Axes:
        """Axes still to be added to a dimension; none if others have to go first."""
        have = self.layout[dim]
        return want[dim][len(have) :] if want[dim][: len(have)] == have else ()

    def _slice(self, want: Layout) -> bool:
        done = False
        for dim in range(len(want)):
            run = self._missing(want, dim)
            used = {a for axes in self.layout for a in axes}
            run = run[: next((i for i, a in enumerate(run) if a in used), len(run))]
            if run:
                self._grow("slice", dim, run)
                done = True
        return done

    def _exchange(self, want: Layout) -> bool:
        for source, axes in enumerate(self.layout):
            if not axes or axes == want[source][: len(axes)]:
                continue
            for target in range(len(want)):
                if target != source and self._missing(want, target)[:1] == axes[-1:]:
                    layout = list(self.layout)
                    layout[source] = axes[:-1]
                    layout[target] = (*layout[target], axes[-1])
                    self._step("all_to_all", axes[-1:], source, target, layout)
                    return True
        return False

    def _gather(self, want: Layout) -> None:
        for dim, axes in enumerate(self.layout):
            keep = _common(axes, want[dim])
            if keep < len(axes):
                layout = list(self.layout)
                layout[dim] = axes[:keep]
                self._step("all_gather", axes[keep:], dim, -1, layout)
                return
        raise AssertionError(f"no way from {self.layout} to {want}")

    def _grow(self, kind: StepKind, dim: int, axes: Axes) -> None:
        layout = list(self.layout)
        layout[dim] = (*layout[dim], *axes)
        self._step(kind, axes, dim, -1, layout)

    def _step(self, kind: StepKind, axes: Axes, dim: int, split: int, layout: list[Axes]) -> None:
        if not self.type.elements:
            kind = "slice"  # nothing to exchange either
        before = local_type(self.type, tuple(self.layout), self.mesh)
        after = local_type(self.type, tuple(layout), self.mesh)
        self.steps.append(Step(kind, axes, dim, split, before, after, self.combine))
        self.layout = layout


def _prefix_in(run: Sequence[int], members: set[int]) -> int:
    return next((i for i, axis in enumerate(run) if axis not in members), len(run))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def shards(layout: Layout, mesh: Mesh) -> int:
    """Into how many pieces a layout splits a value."""
    return math.prod(mesh.size(axes) for axes in layout)
