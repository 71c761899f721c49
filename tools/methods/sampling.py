"""Random sampling: sequences of moves, each as likely as any other. What a search has to beat."""

from __future__ import annotations

import random

from partita.search import Problem, SearchState
from partita.search.protocol import SearchProgress

STOP = 0.2
"""Chance that a sequence ends at each state."""

PATIENCE = 200
"""Sequences without a new state that end the search."""


def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best state on random ways from the start."""
    rng, limit, idle = random.Random(seed), problem.evaluations + budget, 0
    best = problem.start
    while problem.moves and problem.evaluations < limit and idle < PATIENCE:
        before, state = problem.evaluations, problem.start
        while problem.evaluations < limit:
            state = problem.step(state, rng.choice(problem.moves)) or state
            best = min(best, state, key=problem.rank)
            if rng.random() < STOP:
                break
        idle = 0 if problem.evaluations > before else idle + 1
        progress(problem.evaluations, best)
    return best
