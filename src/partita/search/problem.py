"""The decision problem of a search: states are tilings, moves are tile actions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Sequence

from partita.analysis import Analysis, ClassGraph
from partita.cost import Cost, CostModel
from partita.mesh import Mesh
from partita.spmd import Lowerer, Lowering
from partita.tiling import Node, Propagation, Propagator, TileAction, Tiling

NOISE = 1e-3
"""What a move has to gain of the step, or of what is too large: the model cannot tell less."""

MOST_RESOLUTIONS = 8
"""Ways to resolve a color's conflicts that are offered as moves of their own."""


@dataclasses.dataclass(frozen=True, eq=False)
class SearchState:
    """A tiling with its lowering and cost, and the moves that led to it."""

    tiling: Tiling
    lowering: Lowering
    cost: Cost
    moves: tuple[TileAction, ...]
    key: int
    """Equal for equal tilings, whatever moves led there."""


class Problem:
    """A program on a mesh, with what has been decided already, ready to be searched.

    Only color groups in `colors` are moved; all, if there are none given. What is pinned in the
    tiling does not take the axis that it is pinned against, whatever is moved.
    """

    def __init__(
        self,
        analysis: Analysis,
        graph: ClassGraph,
        tiling: Tiling,
        mesh: Mesh,
        cost_model: CostModel,
        axes: Sequence[int],
        colors: Container[int] | None = None,
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.cost_model = cost_model
        self.propagator = Propagator(graph, mesh, analysis.groups.conflict_groups)
        self.lowerer = Lowerer(graph, mesh, int(cost_model.hardware.latency_bytes.value))
        every = _moves(analysis, graph, axes)
        self.moves = [move for move in every if colors is None or move.color in colors]
        self.evaluations = 0
        lowering = self.lowerer.lower(tiling)
        self.start = SearchState(tiling, lowering, cost_model.cost(lowering), (), 0)
        self._steps: dict[tuple[int, TileAction], SearchState | None] = {}
        self._states: dict[int, SearchState] = {0: self.start}
        self.best = self.start
        """The best of all states that were evaluated, also of those on the way to others."""

    def step(self, state: SearchState, move: TileAction) -> SearchState | None:
        """The state after a move; None if the move changes nothing."""
        key = (state.key, move)
        if key not in self._steps:
            self._steps[key] = self.arrive(state, move, self.propagation(state, move))
        return self._steps[key]

    def replay(self, moves: Sequence[TileAction], limit: float = math.inf) -> SearchState:
        """The state after these moves from the start; those that change nothing are left out.

        It has these moves, even if it was reached by others before. Stops on the way when `limit`
        states have been evaluated in all.
        """
        state, taken = self.start, []
        for move in moves:
            if self.evaluations >= limit:
                break
            after = self.step(state, move)
            if after is not None:
                state = after
                taken.append(move)
        moved = tuple(taken)
        return state if state.moves == moved else dataclasses.replace(state, moves=moved)

    def propagation(self, state: SearchState, move: TileAction) -> Propagation:
        """What a move takes in a state."""
        return self.propagator.tile(state.tiling, move)

    def parts(self, propagation: Propagation, move: TileAction) -> list[frozenset[Node]]:
        """The parts of what a move takes, numbered as in its `without`."""
        return self.propagator.parts(propagation, move)

    def better(self, a: SearchState, b: SearchState) -> bool:
        """Whether `a` is a better plan than `b`."""
        return self.rank(a) < self.rank(b)

    def rank(self, state: SearchState) -> tuple[bool, float, float, int]:
        """Order of plans: those that fit by time, the others behind them by peak memory.

        Each move has to gain more than the noise.
        """
        time, peak = state.cost.time.step_time, state.cost.peak
        fits = peak <= self.cost_model.capacity
        first, second = (time, peak) if fits else (peak, time)
        noise = (1 + NOISE) ** len(state.moves)
        return (not fits, first * noise, second, len(state.moves))

    def proposals(self, count: int) -> list[SearchState]:
        """The best of all states that were evaluated, best first; of those alike, the best one.

        Alike are states that cost the same but for the noise: they differ in tensors that do not
        matter.
        """
        found: list[SearchState] = []
        for state in sorted(self._states.values(), key=self.rank):
            if len(found) == count:
                break
            if not any(_alike(state.cost, other.cost) for other in found):
                found.append(state)
        return found

    def log_cost(self, state: SearchState) -> float:
        """One number to steer by: log of the step time, and what is too large weighs heavily."""
        cost = state.cost
        excess = math.log(max(cost.peak / self.cost_model.capacity, 1.0))
        return math.log(max(cost.time.step_time, 1e-12)) + 4.0 * excess

    def arrive(
        self, state: SearchState, move: TileAction, propagation: Propagation
    ) -> SearchState | None:
        """The state to which a propagation leads, evaluated if it is new."""
        if not propagation.ops and not propagation.values:
            return None
        key, axis, tiling = state.key, move.axis, state.tiling
        for index, place in propagation.ops.items():
            key ^= hash((index, place, axis, len(tiling.ops[index][place])))
        for index, place in propagation.values.items():
            key ^= hash((~index, place, axis, len(tiling.values[index][place])))
        known = self._states.get(key)
        if known is None:
            self.evaluations += 1
            lowering = self.lowerer.lower(
                propagation.tiling, state.lowering, propagation.ops, propagation.values
            )
            cost = self.cost_model.cost(lowering, state.cost)
            known = SearchState(propagation.tiling, lowering, cost, (*state.moves, move), key)
            self._states[key] = known
            if self.better(known, self.best):
                self.best = known
        return known


def _alike(a: Cost, b: Cost) -> bool:
    """Whether two costs are the same as far as the model can tell."""
    pairs = ((a.time.step_time, b.time.step_time), (a.peak, b.peak))
    return all(math.isclose(one, other, rel_tol=NOISE) for one, other in pairs)


def _moves(analysis: Analysis, graph: ClassGraph, axes: Sequence[int]) -> list[TileAction]:
    """All moves, those on colors with more data first."""
    weight: dict[int, int] = {}
    for value in graph.values:
        for color in set(value.colors):
            if color >= 0:
                size = value.value.type.bytes * len(value.members)
                weight[color] = weight.get(color, 0) + size
    groups = analysis.groups
    moves = []
    for color in sorted(weight, key=lambda c: (-weight[c], c)):
        conflicts = [
            (number, roles)
            for number, roles in enumerate(groups.conflict_groups)
            if groups.conflict_color[number] == color
        ]
        choices = itertools.product(*(roles for _, roles in conflicts))
        for choice in itertools.islice(choices, MOST_RESOLUTIONS):
            roles = tuple(
                (number, role) for (number, _), role in zip(conflicts, choice, strict=True)
            )
            moves += [TileAction(color, axis, roles) for axis in axes]
    return moves
