"""Beam search: expands the best few states of each number of moves."""

from __future__ import annotations

from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register

WIDTH = 8
"""Number of states that are expanded for each number of moves."""


@register("beam")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Returns the best state on the way; nothing is random.

    Also expands states that are worse than those before: two moves may help where neither does
    alone.
    """
    limit = problem.evaluations + budget
    best, beam, seen = problem.start, [problem.start], {problem.start.key}
    while beam:
        following: list[SearchState] = []
        for state in beam:
            for move in problem.moves:
                if problem.evaluations >= limit:
                    return min((*following, best), key=problem.rank)
                after = problem.step(state, move)
                if after is not None and after.key not in seen:
                    seen.add(after.key)
                    following.append(after)
        best = min((*following, best), key=problem.rank)
        progress(problem.evaluations, best)
        beam = sorted(following, key=problem.log_cost)[:WIDTH]
    return best
