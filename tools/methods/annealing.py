"""Simulated annealing (Kirkpatrick et al., 1983): random single changes of a sequence of moves. One
that makes the plan worse is taken, too, the less likely the worse it is and the later it comes."""

from __future__ import annotations

import math
import random

from partita.decisions import ShardColor
from partita.search import Move, Problem, SearchState
from partita.search.protocol import SearchProgress

HOT, COLD = 0.2, 0.002
"""Temperatures at the beginning and at the end, in logarithms of the step time: changes of a fifth
and of a five hundredth are taken every third time."""

PATIENCE = 500
"""Changes without a new state that end the search."""


def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best state on the way, while it cools from the first to the last state evaluated."""
    rng, first, idle = random.Random(seed), problem.evaluations, 0
    best = state = problem.start
    while problem.moves and problem.evaluations < first + budget and idle < PATIENCE:
        before = problem.evaluations
        temperature = HOT * (COLD / HOT) ** ((before - first) / budget)
        after = problem.replay(changed(state.moves, problem.moves, rng), first + budget)
        worse = problem.log_cost(after) - problem.log_cost(state)
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            state = after
        best = min(best, after, key=problem.rank)
        idle = 0 if problem.evaluations > before else idle + 1
        progress(problem.evaluations, best)
    return best


def changed(
    moves: tuple[Move, ...], every: list[ShardColor], rng: random.Random
) -> tuple[Move, ...]:
    """The moves with one added, dropped or exchanged, or two in the other order."""
    place = rng.randrange(len(moves) + 1)
    if place == len(moves) or rng.random() < 0.4:
        return (*moves[:place], rng.choice(every), *moves[place:])
    kind, rest = rng.randrange(3), (*moves[:place], *moves[place + 1 :])
    if kind == 0:
        return rest
    if kind == 1:
        return (*moves[:place], rng.choice(every), *moves[place + 1 :])
    other = rng.randrange(len(moves))
    return (*rest[:other], moves[place], *rest[other:])
