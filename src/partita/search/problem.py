"""The decision problem of a search: states are tilings, moves tile a color group along an axis."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Sequence

from partita.analysis import Analysis, ClassGraph
from partita.cost import Cost, CostModel
from partita.mesh import Mesh
from partita.spmd import Lowerer, Lowering
from partita.tiling import Node, Propagation, Propagator, Tiling

MOST_RESOLUTIONS = 8
"""Ways to resolve a color's conflicts that are offered as moves of their own."""


@dataclasses.dataclass(frozen=True, order=True)
class Move:
    """Tile a color group along an axis, with a role for each group of conflict sets it meets.

    `without` leaves out parts (by number): the connected pieces into which the move splits where
    earlier moves are in the way. With `sums` false, operations that sum over the color are left
    out: instead of leaving partial results, they get their operands gathered, or exchanged for a
    dimension that another move gives them.
    """

    color: int
    axis: int
    roles: tuple[tuple[int, int], ...] = ()
    without: tuple[int, ...] = ()
    sums: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """A tiling, lowered and priced, and the moves that led to it."""

    tiling: Tiling
    lowering: Lowering
    cost: Cost
    moves: tuple[Move, ...]
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
        self.lowerer = Lowerer(graph, mesh)
        every = _moves(analysis, graph, axes)
        self.moves = [move for move in every if colors is None or move.color in colors]
        self.evaluations = 0
        lowering = self.lowerer.lower(tiling)
        self.start = State(tiling, lowering, cost_model.cost(lowering), (), 0)
        self._steps: dict[tuple[int, Move], State | None] = {}
        self._states: dict[int, State] = {0: self.start}
        self.best = self.start
        """The best of all states that were priced, also of those on the way to others."""

    def step(self, state: State, move: Move) -> State | None:
        """The state after a move; None if the move changes nothing."""
        key = (state.key, move)
        if key not in self._steps:
            self._steps[key] = self.arrive(state, move, self.propagation(state, move))
        return self._steps[key]

    def replay(self, moves: Sequence[Move], limit: float = math.inf) -> State:
        """The state after these moves from the start; those that change nothing are left out.

        Stops on the way when `limit` states have been priced in all.
        """
        state = self.start
        for move in moves:
            if self.evaluations >= limit:
                break
            state = self.step(state, move) or state
        return state

    def propagation(self, state: State, move: Move) -> Propagation:
        """What a move takes in a state."""
        return taken_by(move, self.propagator, state.tiling)

    def parts(self, propagation: Propagation, move: Move) -> list[frozenset[Node]]:
        """The parts of what a move takes, numbered as in its `without`."""
        return parts(self.propagator, propagation, move)

    def better(self, a: State, b: State) -> bool:
        """Whether `a` is a better plan than `b`."""
        return self.rank(a) < self.rank(b)

    def rank(self, state: State) -> tuple[bool, float, float, int]:
        """Order of plans: those that fit by time, the others behind them by peak memory."""
        cost = state.cost
        fits = cost.peak <= self.cost_model.capacity
        first, second = (cost.step_time, cost.peak) if fits else (cost.peak, cost.step_time)
        return (not fits, first, second, len(state.moves))

    def log_cost(self, state: State) -> float:
        """One number to steer by: log of the step time, and what is too large weighs heavily."""
        cost = state.cost
        excess = math.log(max(cost.peak / self.cost_model.capacity, 1.0))
        return math.log(max(cost.step_time, 1e-12)) + 4.0 * excess

    def arrive(self, state: State, move: Move, propagation: Propagation) -> State | None:
        """The state to which a propagation leads, lowered and priced if it is new."""
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
            known = State(propagation.tiling, lowering, cost, (*state.moves, move), key)
            self._states[key] = known
            if self.better(known, self.best):
                self.best = known
        return known


def taken_by(move: Move, propagator: Propagator, tiling: Tiling) -> Propagation:
    """What a move takes in a tiling."""
    propagation = propagator.tile_color(tiling, move.color, move.axis, dict(move.roles))
    if not move.without and move.sums:
        return propagation
    kept = [
        part for n, part in enumerate(parts(propagator, propagation, move)) if n not in move.without
    ]
    taken: frozenset[Node] = frozenset().union(*kept)
    return propagator.restrict(tiling, taken, move.axis)


def parts(propagator: Propagator, propagation: Propagation, move: Move) -> list[frozenset[Node]]:
    """The parts of what a move takes, numbered as in its `without`."""
    taken = propagation.taken
    if not move.sums:
        ops = propagator.graph.ops
        taken = frozenset(
            node
            for node in taken
            if node[0] == "value" or ops[node[1]].op.rule.factors[node[2]].kind != "reduction"
        )
    return propagator.parts(taken)


def _moves(analysis: Analysis, graph: ClassGraph, axes: Sequence[int]) -> list[Move]:
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
            moves += [Move(color, axis, roles) for axis in axes]
    return moves
