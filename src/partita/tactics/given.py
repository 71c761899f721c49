"""Shardings that a program comes with: facts, placed before any tactic."""

from __future__ import annotations

import dataclasses

from partita.errors import MeshError, UnsupportedError
from partita.mesh import Mesh
from partita.program.ir import GivenSharding
from partita.tactics.base import Action, Outcome, Stage
from partita.tactics.manual import sharing_a_buffer
from partita.tiling import Assignment, Layout, Node, Tiling


@dataclasses.dataclass(frozen=True)
class GivenShardings:
    """Lays arguments and results out as the program says, and all that follows from it.

    Those whose dimensions are closed are not split further by the tactics that come later.
    """

    given: tuple[GivenSharding, ...]

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"Shardings in the program ({len(self.given)})"

    def apply(self, stage: Stage) -> Outcome:
        """Places every sharding, then spreads each axis from where it is."""
        mesh, spreader = stage.context.mesh, stage.context.single
        placed = self._place(stage)
        values, pins = list(stage.assignment.values), set(stage.assignment.pins)
        for value, (given, layout) in placed.items():
            values[value] = layout
            if not given.open:
                used = {axis for axes in layout for axis in axes}
                pins |= {(value, axis) for axis in range(len(mesh.names)) if axis not in used}
        tiling = Tiling(stage.assignment.ops, tuple(values), frozenset(pins))
        for axis in _outer_first(placed):
            around: list[Node] = []
            for value, (_, layout) in placed.items():
                for dim, axes in enumerate(layout):
                    if axis in axes:
                        around += spreader.neighbours.get(("value", value, dim), [])
            tiling = spreader.tile_nodes(tiling, around, axis, {}).tiling
        actions = (
            Action(mesh.names[axis], f"{given.name} dim {dim}", ((value, dim),))
            for value, (given, layout) in placed.items()
            for dim, axes in enumerate(layout)
            for axis in axes
        )
        return Outcome(
            Assignment(tiling.ops, tiling.values, tiling.pins),
            tuple(f"keeps {given.name} as {given}" for given in self.given),
            actions=tuple(actions),
        )

    def _place(self, stage: Stage) -> dict[int, tuple[GivenSharding, Layout]]:
        """The layout of every value with a sharding, and of those that share its buffer."""
        program = stage.context.analysis.program
        placed: dict[int, tuple[GivenSharding, Layout]] = {}
        for given in self.given:
            shape = program.values[given.value].type.shape
            layout = _layout(given, stage.context.mesh, shape)
            for value in sharing_a_buffer(program, given.value):
                before, known = placed.setdefault(value, (given, layout))
                if known != layout:
                    raise UnsupportedError(
                        f"{before.name} and {given.name} share a buffer, but have the shardings "
                        f"{before} and {given}; take one out of the program"
                    )
        return placed


def _layout(given: GivenSharding, mesh: Mesh, shape: tuple[int, ...]) -> Layout:
    """A given sharding over the mesh of the plan, which must have its axes."""
    sizes = dict(given.mesh)
    for name in (name for axes in given.axes for name in axes):
        if dict(mesh).get(name) != sizes[name]:
            theirs = ",".join(f"{name}={size}" for name, size in given.mesh)
            raise MeshError(
                f"{given.name} comes with the sharding {given} over mesh {theirs}, but the plan is "
                f"for mesh {mesh}; plan for a mesh that has {name}={sizes[name]}, or take the "
                "sharding out of the program"
            )
    layout = tuple(tuple(mesh.axis(name) for name in axes) for axes in given.axes)
    for dim, (size, axes) in enumerate(zip(shape, layout, strict=True)):
        if size % mesh.size(axes):
            raise UnsupportedError(
                f"{given.name} comes with the sharding {given}, but its dimension {dim} of {size} "
                f"does not divide by {mesh.size(axes)}; take the sharding out of the program"
            )
    return layout


def _outer_first(placed: dict[int, tuple[GivenSharding, Layout]]) -> list[int]:
    """The axes in use; those that split a dimension first come first."""
    place: dict[int, int] = {}
    for _, layout in placed.values():
        for axes in layout:
            for number, axis in enumerate(axes):
                place[axis] = max(number, place.get(axis, 0))
    return sorted(place, key=lambda axis: (place[axis], axis))
