"""Best-first search: expands the best plan whose single changes have not been tried, and so on.

From a local optimum the next better plan is often two changes away, and the first one alone makes
it worse. A climb ends by trying the whole neighbourhood of a local optimum. So the best of its
neighbours are known, and are expanded next.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence

from partita.cost import Cost
from partita.decisions import ShardClass
from partita.search.problem import Move, Problem, SearchState, alike
from partita.search.protocol import SearchProgress
from partita.search.refine import changes

FRUITLESS = 12
"""Most plans to expand in turn without finding a better one; then the search ends."""


def _as_it_is(state: SearchState) -> SearchState:
    """Returns the state unchanged."""
    return state


def best_first(
    problem: Problem,
    starts: Iterable[SearchState],
    limit: int,
    progress: SearchProgress,
    adapted: Callable[[SearchState], SearchState] = _as_it_is,
) -> list[SearchState]:
    """Returns all plans that were seen, adapted: the starts, and changes of the best plans.

    Only moves are changed; layouts of single classes that a start has are left out. Plans that do
    not fit are ordered by `Problem.log_cost`, too, since changes of them may fit.

    Args:
      problem: the problem to search.
      starts: the plans to start from.
      limit: the most states that may have been evaluated in all.
      progress: called now and then.
      adapted: returns the plan by which a plan is judged, which is as good or better.
    """
    frontier = _Frontier(problem, adapted)
    for start in starts:
        frontier.start(problem.replay(plain(start.moves), limit))
    best, fruitless = frontier.best, 0
    while problem.evaluations < limit and fruitless < FRUITLESS:
        state = frontier.pop()
        if state is None:
            break
        for moves in changes(problem, state.moves):
            if problem.evaluations >= limit:
                break
            frontier.add(problem.replay(moves, limit))
            progress(problem.evaluations, problem.best)
        fruitless = 0 if frontier.best is not best else fruitless + 1
        best = frontier.best
    return list(frontier.ends.values())


def plain(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Returns the moves that tile more than single classes."""
    return tuple(move for move in moves if not isinstance(move, ShardClass))


class _Frontier:
    """All known plans, and a queue of those whose changes have not been tried, best first."""

    def __init__(self, problem: Problem, adapted: Callable[[SearchState], SearchState]) -> None:
        self.problem, self.adapted = problem, adapted
        self.ends: dict[int, SearchState] = {}
        """Map from the key of each plan to the adapted plan."""
        self.best: SearchState | None = None
        """Best of the adapted plans."""
        self._heap: list[tuple[float, int, int, SearchState, bool]] = []
        self._numbers = itertools.count()
        self._tried: list[Cost] = []

    def start(self, state: SearchState) -> None:
        """Adds a start, even if a plan like it is known: changes of other moves lead elsewhere."""
        self._see(state)
        self._push(state, always=True)

    def add(self, state: SearchState) -> None:
        """Adds a plan, unless it is known."""
        if state.key not in self.ends:
            self._see(state)
            self._push(state)

    def _see(self, state: SearchState) -> None:
        end = self.ends[state.key] = self.adapted(state)
        if self.best is None or self.problem.better(end, self.best):
            self.best = end

    def _push(self, state: SearchState, always: bool = False) -> None:
        order = self.problem.log_cost(self.ends[state.key]), len(state.moves), next(self._numbers)
        heapq.heappush(self._heap, (*order, state, always))

    def pop(self) -> SearchState | None:
        """Returns the best remaining plan that is not like one before; None if there is none."""
        while self._heap:
            *_, state, always = heapq.heappop(self._heap)
            cost = self.ends[state.key].cost
            if always or not any(alike(cost, other) for other in self._tried):
                self._tried.append(cost)
                return state
        return None
