"""The decision problem of a search: states are tilings, moves are what tiles something."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from partita.analysis import Analysis, ClassGraph
from partita.cost import Cost, CostModel, Hardware
from partita.decisions import Decision, ShardColor
from partita.mesh import Mesh
from partita.search.avoided import Avoided
from partita.spmd import Lowerer, Lowering
from partita.spmd.zobrist import ZobristKeys
from partita.tiling import LAYOUTS, Node, Propagation, Propagator, Tiling

NOISE = 3e-4
"""What a move has to gain of the step, or of what is too large: the model cannot tell less."""

MOST_RESOLUTIONS = 8
"""Ways to resolve a color's conflicts that are offered as moves of their own."""


AVOIDED = 4.0
"""How many times longer a plan seems that has collectives which must not be: what leads on to
others without them is still found."""


MEMORY, EACH, FEWEST = 2**29, 24, 500
"""Bytes of what helps to start from states, about how many it takes for every class of a state, and
how many states it is kept of at least."""

Move = Decision
"""What can be done in a state: a decision over classes, or several of them together."""

Rank = tuple[int, float, float, int]
"""Where a plan stands among others, smaller is better; see `Problem.rank`."""


@dataclasses.dataclass(frozen=True, eq=False)
class SearchState:
    """A tiling with its lowering and cost, and the moves that led to it."""

    tiling: Tiling
    lowering: Lowering
    cost: Cost
    moves: tuple[Move, ...]
    key: int
    """Equal for equal tilings, whatever moves led there."""

    @cached_property
    def weight(self) -> int:
        """As how many moves those that led to it count."""
        return sum(move.weight for move in self.moves)


def alike(a: Cost, b: Cost) -> bool:
    """Whether two costs are the same as far as the model can tell."""
    pairs = ((a.time.step_time, b.time.step_time), (a.peak, b.peak))
    return all(math.isclose(one, other, rel_tol=NOISE) for one, other in pairs)


class Problem:
    """A program on a mesh, with what has been decided already, ready to be searched.

    Only color groups in `colors` are moved; all, if there are none given. What is pinned in the
    tiling does not take the axis that it is pinned against, whatever is moved. `starts` are
    sequences of moves, of which good plans are known to come. Plans with collectives of the kinds
    in `avoid` are worse than all others.

    Pickled, it is without all that was evaluated.
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
        """Whether all color groups are moved."""
        self.share = 0
        """Which of several searches this is: from the second on, they begin with other starts."""
        self.starts = tuple(map(tuple, starts))
        self.evaluations = 0
        lowering = self.lowerer.lower(tiling)
        self.start = SearchState(tiling, lowering, cost_model.cost(lowering), (), 0)
        self._marks = ZobristKeys(1), ZobristKeys(2)
        """Of layouts, and of classes: states are told apart by sums of their products."""
        self._taken: dict[tuple[int, Move], _Taken] = {}
        self._states: dict[int, SearchState] = {0: self.start}
        self._recent: deque[int] = deque()
        """Those to start from of which all is at hand, the oldest first."""
        self._most = max(FEWEST, MEMORY // (EACH * (len(graph.ops) + len(graph.values)) or 1))
        self.least = 0.0
        """Seconds that no plan takes less than, as far as a search has found out."""
        self.complete = 0
        """How many plans there are, if a search has looked at all that whole moves lead to."""
        self.best = self.start
        """The best of all states that were evaluated, also of those on the way to others."""

    def __reduce__(self) -> tuple[object, ...]:
        program = self.graph, self.start.tiling, self.mesh
        cost = self.cost_model.hardware, self.cost_model.capacity
        search = self.axes, self.colors, self.starts, self.avoided.kinds
        return _afresh, (program, cost, *search)

    @cached_property
    def largest(self) -> np.ndarray:
        """By the places of a tiling's row, operation classes first: bytes of the largest value that
        a class reads or makes, or is."""
        values = [value.value.type.bytes for value in self.graph.values]
        ops = [
            max((values[v] for row in (*op.operands, *op.results) for v in row), default=0)
            for op in self.graph.ops
        ]
        return np.array([*ops, *values], dtype=np.int64)

    def step(self, state: SearchState, move: Move) -> SearchState | None:
        """The state after a move; None if the move changes nothing."""
        after = self._after(_way(state), move)
        return None if after is None else self._price(after)

    def replay(
        self, moves: Sequence[Move], limit: float = math.inf, like: SearchState | None = None
    ) -> SearchState:
        """The state after these moves from the start; those that change nothing are left out.

        It has these moves, even if it was reached by others before. Only this state is evaluated,
        none on the way there; if it is new and `limit` states have been evaluated in all, it is the
        last one on the way that has been. If a state is given that it is `like`, it is quicker
        evaluated from that one.
        """
        way = _way(self.start)
        for move in moves:
            way = self._after(way, move) or way
        if way.key not in self._states and self.evaluations >= limit:
            return way.base
        state = self._price(way, like)
        return state if state.moves == way.moves else dataclasses.replace(state, moves=way.moves)

    def tiled(self, state: SearchState, move: Move) -> Tiling:
        """The tiling after a move; nothing is evaluated."""
        after = self._after(_way(state), move)
        return state.tiling if after is None else after.tiling

    def tilings(self, moves: Sequence[Move]) -> Iterator[Tiling]:
        """The tiling before each of these moves from the start; nothing is evaluated."""
        way = _way(self.start)
        for move in moves:
            yield way.tiling
            way = self._after(way, move) or way

    def propagation(self, state: SearchState, move: Move) -> Propagation:
        """What a move takes in a state."""
        return move.take(self.propagator, state.tiling)

    def parts(self, propagation: Propagation, move: ShardColor) -> list[frozenset[Node]]:
        """The parts of what a move takes, numbered as in its `without`."""
        return self.propagator.parts(propagation, move.sums)

    def time(self, state: SearchState) -> float:
        """Seconds of a step, as far as compiled schedules hide what could be hidden."""
        return state.cost.time.expected_time(self.cost_model.hardware.hidden_share.value)

    def better(self, a: SearchState, b: SearchState) -> bool:
        """Whether `a` is a better plan than `b`."""
        return self.rank(a) < self.rank(b)

    def rank(self, state: SearchState) -> Rank:
        """Order of plans: those that fit by time, the others behind them by peak memory.

        Behind all of these are plans with collectives that must not be.

        Each move has to gain more than the noise.
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
        """The best of all states that were evaluated, best first; of those alike, the best one.

        Alike are states that cost the same but for the noise: they differ in tensors that do not
        matter.
        """
        return self.different(self._states.values(), count)

    def different(
        self,
        states: Iterable[SearchState],
        count: int,
        alike: Callable[[Cost, Cost], bool] = alike,
    ) -> list[SearchState]:
        """The best of some states, best first; of those alike, the best one."""
        found: list[SearchState] = []
        for state in sorted(states, key=self.rank):
            if len(found) == count:
                break
            if not any(alike(state.cost, other.cost) for other in found):
                found.append(state)
        return found

    def log_cost(self, state: SearchState) -> float:
        """One number to steer by: log of the step time, and what is too large weighs heavily."""
        cost = state.cost
        excess = math.log(max(cost.peak / self.cost_model.capacity, 1.0))
        avoided = math.log(AVOIDED) if self.avoided(state.lowering) else 0.0
        return math.log(max(self.time(state), 1e-12)) + 4.0 * excess + avoided

    def _after(self, way: _Way, move: Move) -> _Way | None:
        """The way with one more move; None if the move changes nothing."""
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
        """Takes note of a state that is better than all before."""
        self.best = state

    def _price(self, way: _Way, like: SearchState | None = None) -> SearchState:
        """The state at the end of a way, evaluated if it is new: from the last one on the way, or
        from one that it is like."""
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
        """A state with all that helps to start from it, found again once if it was left out."""
        if state.lowering.situation is not None:
            return state
        kept = self._states[state.key]
        if kept.lowering.situation is None:
            lowering = self.lowerer.lower(kept.tiling)
            kept = dataclasses.replace(kept, lowering=lowering, cost=self.cost_model.cost(lowering))
            self._keep(kept)
        return kept

    def _keep(self, state: SearchState) -> None:
        """Notes a state. Of the oldest, what only helps to start from them is left out: there may
        be tens of thousands, of programs of thousands of classes."""
        self._states[state.key] = state
        self._recent.append(state.key)
        if len(self._recent) > self._most:
            old = self._states[self._recent.popleft()]
            lowering, cost = old.lowering.without_situation(), old.cost.without_parts()
            self._states[old.key] = dataclasses.replace(old, lowering=lowering, cost=cost)


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    """What a move does in some tiling."""

    classes: np.ndarray
    """The classes that change, by their places in the row of a tiling."""
    layouts: np.ndarray
    """The numbers of their new layouts."""
    key: int
    """That of the tiling to which it leads."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """Moves made from the start, where they lead, and the last state there that was evaluated."""

    base: SearchState
    moves: tuple[Move, ...]
    key: int
    since: tuple[_Taken, ...] = ()
    """What the moves do that were made after `base`."""

    @property
    def tiling(self) -> Tiling:
        """Where they lead."""
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
    """A problem from a pickle: the numbers of layouts and plans differ between processes."""
    graph, tiling, mesh = program
    model = CostModel(graph, graph.analysis, mesh, *cost)
    return Problem(graph.analysis, graph, tiling, mesh, model, axes, colors, starts, avoid)


def _way(state: SearchState) -> _Way:
    return _Way(state, state.moves, state.key)


def _moves(analysis: Analysis, propagator: Propagator, axes: Sequence[int]) -> list[ShardColor]:
    """All moves of one color group each, those on colors with more data first."""
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
