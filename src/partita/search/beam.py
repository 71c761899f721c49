"""Beam search: the best few states of as many moves each, from which the next ones are made."""

from __future__ import annotations

from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register

WIDTH = 8
"""How many states of one number of moves are gone on with."""


@register("beam")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best state on the way; nothing is random.

    Also goes on from states that are worse than those before: two moves may help where neither
    does alone.
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
