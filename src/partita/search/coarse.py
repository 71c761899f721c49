"""Plans of coarser meshes, on which several axes are joined into one, to start from.

A plan on `data=4,model=8` is one on `data=4,model=4,more=2`, too, in which `model` and `more` go
together. One on `all=32`, in which all axes go together, is one on either. It costs a little more
or less there, depending on the networks of the axes. The fewer axes there are, the fewer moves, and
the more of the space is searched. With up to two axes, there is the relaxed problem.
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
from partita.search.simplified import class_by_class
from partita.tiling import LAYOUTS, Axes, Layout, Tiling

MESHES = 2
"""Number of coarser meshes to search: those whose axes are most alike in size."""

Bundles = tuple[Axes, ...]
"""Axes of the mesh that each axis of a coarser mesh joins, major first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Coarse:
    """A problem on a coarser mesh, and all ways to read its plans on the mesh itself."""

    fine: Problem
    problem: Problem
    ways: tuple[Bundles, ...]

    def moves(self, state: SearchState) -> Iterator[tuple[Move, ...]]:
        """Yields the plan of a coarser mesh as moves on the mesh itself, for each way to read it.

        There are two for each: its moves, and one move with the layout of every class, since these
        may differ.
        """
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
    """Returns the problem on coarser meshes, with this number of searched axes.

    Meshes whose axes have the same sizes count once. There are none if so few axes are searched
    anyway, or if something has been decided about one of them.

    Args:
      problem: The problem on the mesh itself.
      axes: The number of axes to leave.
      known: Cache of problems by coarser mesh; added to. The same mesh is the same problem.
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
    """Yields all ways to join axes into `count` bundles; those first that join neighbours."""
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
    """Returns the problem on the mesh whose axes are joined as in the first of some ways.

    Returns None if the axes do not fit the networks, or if nothing can be split along them.
    """
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
    """Returns a problem on a mesh with new places of axes; None if they do not fit the networks."""
    graph, model, start = problem.graph, problem.cost_model, problem.start.tiling
    try:
        cost = CostModel(graph, graph.analysis, mesh, model.hardware, model.capacity, model.timing)
    except MeshError:
        return None
    tiling = Tiling(
        [_coarser(layout, place) for layout in start.ops],
        [_coarser(layout, place) for layout in start.values],
        frozenset((value, place[axis]) for value, axis in start.pinned),
        start.gathers,
    )
    avoided = problem.avoided.kinds
    return Problem(graph.analysis, graph, tiling, mesh, cost, searched, None, (), avoided)


def _networks(mesh: Mesh, bundle: Axes) -> tuple[str, ...]:
    """Returns the networks of joined axes, inner first, as far as the user placed them on some."""
    inner_first = (name for axis in reversed(bundle) for name in mesh.networks[axis])
    return tuple(dict.fromkeys(inner_first))


def _used(tiling: Tiling) -> set[int]:
    """Returns the axes that split anything."""
    layouts = (LAYOUTS.all[number] for number in np.unique(tiling.row).tolist())
    return {axis for layout in layouts for axes in layout for axis in axes}


def _along(move: Move, bundles: Bundles) -> Iterator[Move]:
    """Yields a move along each of the axes that are joined into its axis."""
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
