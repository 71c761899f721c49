"""Exhaustive search: evaluates every plan that moves lead to, which proves the best of them."""

from __future__ import annotations

import dataclasses
from collections import deque

from partita.errors import TacticError
from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register


@dataclasses.dataclass(frozen=True)
class Exhausted:
    """Result of an exhaustive search."""

    best: SearchState
    states: int
    """Number of states seen, the start included."""
    complete: bool
    """True if these are all states that moves lead to, in any number and order."""


@register("exhaustive")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Returns the best of all states; nothing is random.

    Raises:
      TacticError: there are more than `budget`.
    """
    found = exhaust(problem, budget, progress)
    if not found.complete:
        raise TacticError(
            f"there are more than {budget} plans, too many for exhaustive search; "
            "give it a larger budget, or a search that does not look at all of them"
        )
    problem.complete = found.states
    return found.best


def exhaust(
    problem: Problem, limit: int, progress: SearchProgress = lambda done, best: None
) -> Exhausted:
    """Returns the best of all states, or of those up to a limit.

    States that were evaluated before cost nothing. Only whole moves are made: refinement also makes
    moves without some of their parts.

    Args:
      problem: the problem to search.
      limit: the most states to see, not counting the start.
      progress: called with the number of states evaluated and the best so far.
    """
    start = problem.replay(())
    best, queue, seen = start, deque([start]), {start.key}
    while queue:
        state = queue.popleft()
        for move in problem.moves:
            after = problem.step(state, move)
            if after is None or after.key in seen:
                continue
            if len(seen) > limit:
                return Exhausted(best, len(seen), False)
            seen.add(after.key)
            # Breadth first, so that no fewer moves lead there.
            after = dataclasses.replace(after, moves=(*state.moves, move))
            queue.append(after)
            if problem.better(after, best):
                best = after
        progress(problem.evaluations, best)
    return Exhausted(best, len(seen), True)
