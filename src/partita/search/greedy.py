"""Greedy search: makes the best move of all, as long as one improves the plan."""

from __future__ import annotations

from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register


@register("greedy")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Returns the state where no further move helps; nothing is random."""
    limit = problem.evaluations + budget
    best = problem.start
    while True:
        found = best
        for move in problem.moves:
            if problem.evaluations >= limit:
                return min(found, best, key=problem.rank)
            after = problem.replay((*best.moves, move))
            if problem.better(after, found):
                found = after
        progress(problem.evaluations, found)
        if found is best:
            return best
        best = found
