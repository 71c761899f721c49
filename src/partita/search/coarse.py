"""Plans of coarser meshes, in which several axes are one, to start from.

A plan on `data=4,model=8` is one on `data=4,model=4,more=2`, too, in which `model` and `more` go
together; and one on `all=32`, in which all axes do, is one on either. It costs a little more or
less there, as the axes lie on networks. The fewer the axes, the fewer moves there are, and the more
of the space is looked at; up to two, there is the relaxed problem.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from partita.cost import CostModel
from partita.decisions import DecisionGroup, ShardClass, ShardColor
from partita.errors import MeshError
from partita.mesh import Mesh
from partita.search.problem import Move, Problem, SearchState
from partita.search.relaxed_starts import class_by_class
from partita.tiling import LAYOUTS, Axes, Layout, Tiling

MESHES = 2
"""Coarser meshes that are looked at: those whose axes are most alike in size."""

Bundles = tuple[Axes, ...]
"""For every axis of a coarser mesh, the axes that go together there, major first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Coarse:
    """A problem on a coarser mesh, and all ways to read its plans on the mesh itself."""

    fine: Problem
    problem: Problem
    ways: tuple[Bundles, ...]

    def moves(self, state: SearchState) -> Iterator[tuple[Move, ...]]:
        """What a plan on the coarser mesh is on the mesh itself: in each of the ways its moves,
        and one that lays out all classes as it does, should that be something else."""
        numbers, places = np.unique(state.tiling.row, return_inverse=True)
        layouts = [LAYOUTS.all[number] for number in numbers.tolist()]
        for bundles in self.ways:
            yield tuple(fine for move in state.moves for fine in _along(move, bundles))
            finer = np.array([LAYOUTS[_finer(layout, bundles)] for layout in layouts])
            row = finer[places].astype(state.tiling.row.dtype)
            yield (class_by_class(self.fine, self.fine.start.tiling.with_row(row)),)


def coarsened(
    problem: Problem, axes: int, known: dict[Mesh, Problem] | None = None
) -> list[Coarse]:
    """The problem on coarser meshes, of which so many axes are searched.

    Neighbours are joined there; meshes whose axes have the same sizes count once. There is none
    where so few axes are searched anyway, or something has been decided about one of them.

    Args:
      problem: On the mesh itself.
      axes: How many axes to leave.
      known: What is known of coarser meshes than others; added to. The same mesh is the same
        problem.
    """
    known = {} if known is None else known
    start, manual = problem.start.tiling, (op.op.work for op in problem.graph.ops)
    if (
        not 0 < axes < len(problem.axes)
        or not problem.everything
        or _used(start) & {*problem.axes}
        or any(work and work.collectives for work in manual)
    ):
        return []
    sizes = dict[Axes, list[Bundles]]()
    for bundles in _joined(problem.axes, axes):
        sizes.setdefault(tuple(sorted(map(problem.mesh.size, bundles))), []).append(bundles)
    found = list[Coarse]()
    for _, ways in sorted(sizes.items(), key=lambda each: each[0][-1]):
        if len(found) < MESHES and (coarse := _coarse(problem, ways, known)):
            found.append(coarse)
    return found


def _joined(searched: Axes, count: int) -> Iterator[Bundles]:
    """All ways to make so many of some axes; those first that join neighbours."""
    every = set[Bundles]()
    for cuts in itertools.combinations(range(1, len(searched)), count - 1):
        ends = itertools.pairwise((0, *cuts, len(searched)))
        bundles = tuple(searched[first:last] for first, last in ends)
        every.add(bundles)
        yield bundles
    for owners in itertools.product(range(count), repeat=len(searched)):
        bundles = tuple(
            tuple(axis for axis, owner in zip(searched, owners, strict=True) if owner == number)
            for number in range(count)
        )
        if all(bundles) and bundles not in every:
            yield bundles


def _coarse(problem: Problem, ways: Sequence[Bundles], known: dict[Mesh, Problem]) -> Coarse | None:
    """The problem on the mesh in which axes are joined as in the first of some ways; None if that
    cannot be laid on the networks, or nothing can be split along them."""
    mesh, first = problem.mesh, ways[0]
    sizes = [mesh.size(bundle) for bundle in first]
    others = [(axis,) for axis in range(len(mesh.names)) if axis not in problem.axes]
    order = sorted([*others, *first])
    place = {axis: number for number, bundle in enumerate(order) for axis in bundle}
    joined = Mesh(
        tuple("+".join(mesh.axis_names(bundle)) for bundle in order),
        tuple(map(mesh.size, order)),
        tuple(_networks(mesh, bundle) for bundle in order),
    )
    searched = [place[bundle[0]] for bundle in first]
    coarse = known.get(joined) or _problem(problem, joined, place, searched)
    if coarse is None or not coarse.moves:
        return None
    known[joined] = coarse
    read = []
    for bundles in ways:
        for each in set(itertools.permutations(bundles)):
            if [mesh.size(bundle) for bundle in each] == sizes:
                finer = dict(zip(searched, each, strict=True))
                read.append(tuple(finer.get(number, bundle) for number, bundle in enumerate(order)))
    return Coarse(problem, coarse, tuple(dict.fromkeys(read)))


def _problem(
    problem: Problem, mesh: Mesh, place: dict[int, int], searched: Sequence[int]
) -> Problem | None:
    """A problem on a mesh of which each axis has a new place; None if it cannot be laid on the
    networks."""
    graph, model, start = problem.graph, problem.cost_model, problem.start.tiling
    try:
        cost = CostModel(graph, graph.analysis, mesh, model.hardware, model.capacity, model.timing)
    except MeshError:
        return None
    tiling = Tiling(
        [_coarser(layout, place) for layout in start.ops],
        [_coarser(layout, place) for layout in start.values],
        frozenset((value, place[axis]) for value, axis in start.pinned),
    )
    avoided = problem.avoided.kinds
    return Problem(graph.analysis, graph, tiling, mesh, cost, searched, None, (), avoided)


def _networks(mesh: Mesh, bundle: Axes) -> tuple[str, ...]:
    """The networks of joined axes, inner first, as far as the user laid them on some."""
    inner_first = (name for axis in reversed(bundle) for name in mesh.networks[axis])
    return tuple(dict.fromkeys(inner_first))


def _used(tiling: Tiling) -> set[int]:
    """The axes that split anything."""
    layouts = (LAYOUTS.all[number] for number in np.unique(tiling.row).tolist())
    return {axis for layout in layouts for axes in layout for axis in axes}


def _along(move: Move, bundles: Bundles) -> Iterator[Move]:
    """A move along each of the axes that one is made of."""
    if isinstance(move, DecisionGroup):
        actions = (each for action in move.decisions for each in _along(action, bundles))
        yield DecisionGroup(tuple(action for action in actions if isinstance(action, ShardClass)))
    elif isinstance(move, ShardColor | ShardClass):
        for axis in bundles[move.axis]:
            yield msgspec.structs.replace(move, axis=axis)


def _coarser(layout: Layout, place: dict[int, int]) -> Layout:
    return tuple(tuple(place[axis] for axis in axes) for axes in layout)


def _finer(layout: Layout, bundles: Bundles) -> Layout:
    return tuple(tuple(axis for number in axes for axis in bundles[number]) for axes in layout)
