"""Decision problem of a search: states are tilings, moves are decisions that tile something."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from partita.analysis import Analysis, ClassGraph, OpClass, ValueClass
from partita.cost import Cost, CostModel, Hardware
from partita.decisions import Decision, ShardClass, ShardColor
from partita.mesh import Mesh
from partita.search.avoided import Avoided
from partita.spmd import Lowerer, Lowering
from partita.spmd.zobrist import ZobristKeys
from partita.tiling import LAYOUTS, Node, Propagation, Propagator, Tiling

NOISE = 3e-4
"""Least relative gain of a move in step time, or in excess memory: below that is model noise."""

MOST_RESOLUTIONS = 8
"""Most resolutions of a color's conflicts that are offered as moves of their own."""


AVOIDED = 4.0
"""Factor on the step time of a plan with avoided collectives; finite, since it may lead to plans
without them."""


MEMORY, EACH, FEWEST = 2**29, 24, 500
"""Bytes for data to start from states; bytes of it per class of a state; least number of states
that keep it."""

Move = Decision
"""One move: a decision over classes, or several of them together."""

ClassNode = tuple[Literal["op", "value"], int]
"""A class of operations or of values."""

Rank = tuple[int, float, float, int]
"""Rank of a plan among others, smaller is better; see `Problem.rank`."""


@dataclasses.dataclass(frozen=True, eq=False)
class SearchState:
    """A tiling with its lowering and cost, and the moves that led to it."""

    tiling: Tiling
    lowering: Lowering
    cost: Cost
    moves: tuple[Move, ...]
    key: int
    """Hash of the tiling: equal for equal tilings, whatever moves led there."""

    @cached_property
    def weight(self) -> int:
        """Complexity penalty: summed weights of the moves."""
        return sum(move.weight for move in self.moves)


def alike(a: Cost, b: Cost) -> bool:
    """Returns whether two costs are equal except for the noise of the model."""
    pairs = ((a.time.step_time, b.time.step_time), (a.peak, b.peak))
    return all(math.isclose(one, other, rel_tol=NOISE) for one, other in pairs)


class Problem:
    """A program on a mesh, with what has been decided already, ready to be searched.

    Only color groups in `colors` are moved; all if it is None. Values pinned in the tiling do not
    take the axis that they are pinned against. `starts` are sequences of moves that are known to
    lead to good plans. Plans with collectives of the kinds in `avoid` are worse than all others.

    A pickle does not contain evaluated states.
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
        starts: Sequence[Sequence[Move]] = (),
        avoid: Sequence[str] = (),
    ) -> None:
        self.graph = graph
        self.avoided = Avoided(avoid)
        self.mesh = mesh
        self.cost_model = cost_model
        self.propagator = Propagator(graph, mesh, analysis.groups.conflict_groups)
        self.lowerer = Lowerer(graph, mesh, int(cost_model.hardware.latency_bytes.value))
        every = _moves(analysis, self.propagator, axes)
        self.moves = [move for move in every if colors is None or move.color in colors]
        self.axes = tuple(axes)
        self.colors = colors
        self.everything = colors is None
        """True if all color groups are moved."""
        self.share = 0
        """Number of this search among several: from 1 on, they begin with other starts."""
        self.starts = tuple(map(tuple, starts))
        self.evaluations = 0
        lowering = self.lowerer.lower(tiling)
        self.start = SearchState(tiling, lowering, cost_model.cost(lowering), (), 0)
        self._marks = ZobristKeys(1), ZobristKeys(2)
        """Zobrist keys of layouts, and of classes; sums of their products distinguish states."""
        self._taken: dict[tuple[int, Move], _Taken] = {}
        self._states: dict[int, SearchState] = {0: self.start}
        self._recent: deque[int] = deque()
        """Keys of states with all data to start from, oldest first."""
        self._most = max(FEWEST, MEMORY // (EACH * (len(graph.ops) + len(graph.values)) or 1))
        self.least = 0.0
        """Lower bound in seconds on all step times, as far as a search has found one; else 0."""
        self.complete = 0
        """Number of plans that whole moves lead to, if a search has evaluated them all; else 0."""
        self.best = self.start
        """Best of all states that were evaluated, those on the way to others included."""

    def __reduce__(self) -> tuple[object, ...]:
        program = self.graph, self.start.tiling, self.mesh
        cost = self.cost_model.hardware, self.cost_model.capacity
        search = self.axes, self.colors, self.starts, self.avoided.kinds
        return _afresh, (program, cost, *search)

    @cached_property
    def largest(self) -> np.ndarray:
        """Bytes of the largest value that a class reads, makes or is, by place in a tiling's row.

        Operation classes come first.
        """
        values = [value.value.type.bytes for value in self.graph.values]
        ops = [
            max((values[v] for row in (*op.operands, *op.results) for v in row), default=0)
            for op in self.graph.ops
        ]
        return np.array([*ops, *values], dtype=np.int64)

    def step(self, state: SearchState, move: Move) -> SearchState | None:
        """Returns the state after a move; None if the move changes nothing."""
        after = self._after(_way(state), move)
        return None if after is None else self._price(after)

    def replay(
        self, moves: Sequence[Move], limit: float = math.inf, like: SearchState | None = None
    ) -> SearchState:
        """Returns the state after these moves from the start; drops those that change nothing.

        It has these moves, even if others led to it before. Only this state is evaluated, none on
        the way there. If it is new and `limit` states have been evaluated in all, returns the last
        state on the way that was evaluated. A similar state `like` makes the evaluation faster.
        """
        way = _way(self.start)
        for move in moves:
            way = self._after(way, move) or way
        if way.key not in self._states and self.evaluations >= limit:
            return way.base
        state = self._price(way, like)
        return state if state.moves == way.moves else dataclasses.replace(state, moves=way.moves)

    def tiled(self, state: SearchState, move: Move) -> Tiling:
        """Returns the tiling after a move; nothing is evaluated."""
        after = self._after(_way(state), move)
        return state.tiling if after is None else after.tiling

    def tilings(self, moves: Sequence[Move]) -> Iterator[Tiling]:
        """Yields the tiling before each of these moves from the start; nothing is evaluated."""
        way = _way(self.start)
        for move in moves:
            yield way.tiling
            way = self._after(way, move) or way

    def propagation(self, state: SearchState, move: Move) -> Propagation:
        """Returns the propagation of a move in a state."""
        return move.take(self.propagator, state.tiling)

    def parts(self, propagation: Propagation, move: ShardColor) -> list[frozenset[Node]]:
        """Returns the connected parts of a move's propagation, numbered as in its `without`."""
        return self.propagator.parts(propagation, move.sums)

    def node(self, place: int) -> ClassNode:
        """Returns the class at a place of a tiling's row."""
        count = len(self.graph.ops)
        return ("op", place) if place < count else ("value", place - count)

    def differing(self, before: Tiling, after: Tiling) -> list[ClassNode]:
        """Returns the classes whose layouts differ between two tilings."""
        return list(map(self.node, np.flatnonzero(before.row != after.row).tolist()))

    def class_move(self, node: ClassNode, axis: int, place: int) -> ShardClass:
        """Returns the move that gives an axis of a class another place."""
        kind, index = node
        classes: Sequence[OpClass | ValueClass] = (
            self.graph.ops if kind == "op" else self.graph.values
        )
        return ShardClass(kind, classes[index].members[0], axis, place)

    def class_of(self, move: ShardClass) -> ClassNode:
        """Returns the class that a move is about."""
        numbers = self.graph.op_class if move.kind == "op" else self.graph.value_class
        return move.kind, numbers[move.member]

    def time(self, state: SearchState) -> float:
        """Returns the step time in seconds, given the share of hideable time that is hidden."""
        return state.cost.time.expected_time(self.cost_model.hardware.hidden_share.value)

    def better(self, a: SearchState, b: SearchState) -> bool:
        """Returns whether `a` is a better plan than `b`."""
        return self.rank(a) < self.rank(b)

    def rank(self, state: SearchState) -> Rank:
        """Returns the rank of a plan: those that fit by time, then the others by peak memory.

        Plans with avoided collectives come after all of these. Each move has to gain more than the
        noise.
        """
        time, peak = self.time(state), state.cost.peak
        fits = peak <= self.cost_model.capacity
        first, second = (time, peak) if fits else (peak, time)
        level = 2 * self.avoided(state.lowering) + (not fits)
        return (level, first * (1 + NOISE) ** state.weight, second, state.weight)

    @property
    def states(self) -> Iterable[SearchState]:
        """All states that were evaluated, in that order, the start first."""
        return self._states.values()

    def proposals(self, count: int) -> list[SearchState]:
        """Returns the best of all evaluated states, best first, and only the best of those alike.

        States are alike if they cost the same except for the noise: they differ in tensors that do
        not matter.
        """
        return self.different(self._states.values(), count)

    def different(
        self,
        states: Iterable[SearchState],
        count: int,
        alike: Callable[[Cost, Cost], bool] = alike,
    ) -> list[SearchState]:
        """Returns the best of some states, best first, and only the best of those alike."""
        found: list[SearchState] = []
        for state in sorted(states, key=self.rank):
            if len(found) == count:
                break
            if not any(alike(state.cost, other.cost) for other in found):
                found.append(state)
        return found

    def log_cost(self, state: SearchState) -> float:
        """Returns the log of the step time, with heavy penalties for excess memory.

        Avoided collectives are penalised, too. The searches steer by it.
        """
        cost = state.cost
        excess = math.log(max(cost.peak / self.cost_model.capacity, 1.0))
        avoided = math.log(AVOIDED) if self.avoided(state.lowering) else 0.0
        return math.log(max(self.time(state), 1e-12)) + 4.0 * excess + avoided

    def _after(self, way: _Way, move: Move) -> _Way | None:
        """Returns the way with one more move; None if the move changes nothing."""
        known = (way.key, move)
        taken = self._taken.get(known)
        if taken is None:
            taken = self._taken[known] = self._take(way, move)
        if not len(taken.classes):
            return None
        moves = (*way.moves, move)
        reached = self._states.get(taken.key)
        if reached is not None:
            return _Way(reached, moves, taken.key)
        return _Way(way.base, moves, taken.key, (*way.since, taken))

    def _take(self, way: _Way, move: Move) -> _Taken:
        before = way.tiling
        after = move.take(self.propagator, before).tiling
        classes = np.flatnonzero(before.row != after.row).astype(np.int32)
        old, new = before.row[classes], after.row[classes]
        count = len(LAYOUTS.all)
        more = self._marks[0].of(new, count) - self._marks[0].of(old, count)
        more *= self._marks[1].of(classes, len(before.row))
        return _Taken(classes, new, (way.key + int(more.sum())) % 2**64)

    def improve(self, state: SearchState) -> None:
        """Records a state that is better than all before."""
        self.best = state

    def _price(self, way: _Way, like: SearchState | None = None) -> SearchState:
        """Returns the state at the end of a way, evaluated if it is new.

        The evaluation starts from the last state on the way, or from the one given as `like`.
        """
        known = self._states.get(way.key)
        if known is None:
            self.evaluations += 1
            base, tiling = self._whole(like or way.base), way.tiling
            lowering = self.lowerer.lower(tiling, base.lowering)
            cost = self.cost_model.cost(lowering, base.cost)
            known = SearchState(tiling, lowering, cost, way.moves, way.key)
            self._keep(known)
            if self.better(known, self.best):
                self.improve(known)
        return known

    def _whole(self, state: SearchState) -> SearchState:
        """Returns a state with all data to start from it, recomputed if it was dropped."""
        if state.lowering.situation is not None:
            return state
        kept = self._states[state.key]
        if kept.lowering.situation is None:
            lowering = self.lowerer.lower(kept.tiling)
            kept = dataclasses.replace(kept, lowering=lowering, cost=self.cost_model.cost(lowering))
            self._keep(kept)
        return kept

    def _keep(self, state: SearchState) -> None:
        """Records a state, and drops the data to start from the oldest one.

        There may be tens of thousands of states, of programs of thousands of classes.
        """
        self._states[state.key] = state
        self._recent.append(state.key)
        if len(self._recent) > self._most:
            old = self._states[self._recent.popleft()]
            lowering, cost = old.lowering.without_situation(), old.cost.without_parts()
            self._states[old.key] = dataclasses.replace(old, lowering=lowering, cost=cost)


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    """Effect of a move on a tiling."""

    classes: np.ndarray
    """Classes that change, by their places in the row of a tiling."""
    layouts: np.ndarray
    """Numbers of their new layouts."""
    key: int
    """Key of the tiling to which it leads."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """Moves made from the start, where they lead, and the last state there that was evaluated."""

    base: SearchState
    moves: tuple[Move, ...]
    key: int
    since: tuple[_Taken, ...] = ()
    """Effects of the moves after `base`."""

    @property
    def tiling(self) -> Tiling:
        """Tiling after the moves."""
        if not self.since:
            return self.base.tiling
        row = self.base.tiling.row.copy()
        for taken in self.since:
            row[taken.classes] = taken.layouts
        return self.base.tiling.with_row(row)


def _afresh(
    program: tuple[ClassGraph, Tiling, Mesh],
    cost: tuple[Hardware, int],
    axes: Sequence[int],
    colors: Container[int] | None,
    starts: Sequence[Sequence[Move]],
    avoid: Sequence[str],
) -> Problem:
    """Rebuilds a problem from a pickle: numbers of layouts and plans differ between processes."""
    graph, tiling, mesh = program
    model = CostModel(graph, graph.analysis, mesh, *cost)
    return Problem(graph.analysis, graph, tiling, mesh, model, axes, colors, starts, avoid)


def _way(state: SearchState) -> _Way:
    return _Way(state, state.moves, state.key)


def _moves(analysis: Analysis, propagator: Propagator, axes: Sequence[int]) -> list[ShardColor]:
    """Returns all moves of one color group each, those on colors with more data first."""
    groups = analysis.groups
    moves = []
    for color in propagator.heaviest_first:
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
            moves += [ShardColor(color, axis, roles) for axis in axes]
    return moves
