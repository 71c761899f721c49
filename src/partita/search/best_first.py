"""Best-first search: single changes of the best plan whose changes have not been tried, and so on.

From a local optimum the next better plan is often two changes away, of which the first one alone
makes it worse. What a climb has tried last is the whole neighbourhood of a local optimum, so the
best of its neighbours are known, and are the next whose changes are tried.
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
"""Plans in turn whose changes may lead to nothing better; then it ends."""


def _as_it_is(state: SearchState) -> SearchState:
    """The state."""
    return state


def best_first(
    problem: Problem,
    starts: Iterable[SearchState],
    limit: int,
    progress: SearchProgress,
    adapted: Callable[[SearchState], SearchState] = _as_it_is,
) -> list[SearchState]:
    """All plans that were seen, adapted: starts, and what changes of the best of them have led to.

    Changes are those of moves; layouts of single classes that a start has are left out. What does
    not fit takes its place by `Problem.log_cost`, so that plans that fit are found behind it.

    Args:
      problem: what is searched.
      starts: plans to begin with.
      limit: how many states may have been evaluated in all.
      progress: called now and then.
      adapted: gives what a plan is judged by, which is as good or better.
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
    """The moves that tile more than single classes."""
    return tuple(move for move in moves if not isinstance(move, ShardClass))


class _Frontier:
    """Plans that are known, and those of them whose changes have not been tried, best first."""

    def __init__(self, problem: Problem, adapted: Callable[[SearchState], SearchState]) -> None:
        self.problem, self.adapted = problem, adapted
        self.ends: dict[int, SearchState] = {}
        """All plans, adapted, by the key of what they were before."""
        self.best: SearchState | None = None
        """Of those that are adapted."""
        self._heap: list[tuple[float, int, int, SearchState, bool]] = []
        self._numbers = itertools.count()
        self._tried: list[Cost] = []

    def start(self, state: SearchState) -> None:
        """Takes a plan in to begin with, even if there is one like it: other moves can be changed
        to other plans."""
        self._see(state)
        self._push(state, always=True)

    def add(self, state: SearchState) -> None:
        """Takes a plan in, unless it is known."""
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
        """The best plan that is left and not like one before; None if there is none."""
        while self._heap:
            *_, state, always = heapq.heappop(self._heap)
            cost = self.ends[state.key].cost
            if always or not any(alike(cost, other) for other in self._tried):
                self._tried.append(cost)
                return state
        return None
