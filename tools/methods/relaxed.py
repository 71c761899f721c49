"""The relaxed problem as a method: layouts free for every class, near the lower bound, from which
the iterated local search starts.

As in Alpa (Zheng et al., 2022), every operation and value chooses a layout for itself, at costs of
single choices and of pairs; not an integer program finds them but message passing.
"""

from __future__ import annotations

from partita.search import Problem, SearchState, iterated_search
from partita.search.bounds import lower_bound
from partita.search.protocol import SearchProgress
from partita.search.relaxed_starts import relaxed_starts

STARTS = 2
"""How many of what is proposed the search starts from."""


def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best of what is proposed is where the search starts, too."""
    limit = problem.evaluations + budget
    bound = lower_bound(problem) if problem.axes and problem.everything else None
    starts = relaxed_starts(problem, bound, STARTS, limit) if bound else []
    problem.starts = tuple(start.moves for start in starts)
    return iterated_search(problem, limit - problem.evaluations, seed, progress)
