"""Iterated local search: refinement from the empty plan, from good starts, and from what random
changes make of the best.

What single changes lead to depends on where they start: from the empty plan one finds strategies
that nobody wrote, and from a start plans of so many decisions that none of them helps alone. Each
is refined as long as it helps, first its moves and then, of those that are not much slower than the
best, single classes. The rest of the budget goes to the best, disturbed and refined again.

*Iterated Local Search*, Lourenço, Martin and Stützle, in Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from partita.search.problem import Move, Problem, SearchState
from partita.search.protocol import SearchProgress, register
from partita.search.refine import climb, polish
from partita.search.starts import best_starts, followers
from partita.tiling import LocalAction

STARTS = 2
"""Starts that are refined, besides the empty plan."""

EMPTY_SHARE, PRICING_SHARE, STARTS_SHARE = 0.35, 0.2, 0.2
"""Of the budget: what refining the empty plan, pricing starts, and refining them may take."""

NEAR = 1.03
"""How much slower than the best a plan may be whose single classes are still looked at."""

KICK = 3
"""Most random changes at a time."""

IDLE = 40
"""Disturbances in turn that may lead to nothing new; then the space is taken to be exhausted."""


@register("iterated")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best of all states seen. Only the disturbances are random."""
    limit = problem.evaluations + budget
    share = _Shares(problem, budget, limit)
    climbed = [climb(problem, problem.start, share(EMPTY_SHARE), progress)]
    starts = best_starts(problem, STARTS, share(PRICING_SHARE))
    for number, start in enumerate(starts):
        climbed.append(
            climb(problem, start, share(STARTS_SHARE / (len(starts) - number)), progress)
        )
    for state in problem.different(climbed, len(climbed)):
        _polish(problem, state, limit, progress)
    _disturb(problem, limit, random.Random(seed), progress)
    return problem.best


class _Shares:
    """Limits of evaluations: the given share of the budget from here on."""

    def __init__(self, problem: Problem, budget: int, limit: int) -> None:
        self._problem, self._budget, self._limit = problem, budget, limit

    def __call__(self, share: float) -> int:
        return min(self._limit, self._problem.evaluations + round(share * self._budget))


def _disturb(problem: Problem, limit: int, rng: random.Random, progress: SearchProgress) -> None:
    """Refines what random changes make of the best, as long as there is budget."""
    idle = 0
    while problem.evaluations < limit and idle < IDLE:
        before = problem.evaluations
        kicked = _kicked(problem, _colors(problem.best.moves), rng)
        _polish(
            problem, climb(problem, problem.replay(kicked, limit), limit, progress), limit, progress
        )
        idle = 0 if problem.evaluations > before else idle + 1


def _polish(problem: Problem, state: SearchState, limit: int, progress: SearchProgress) -> None:
    """Polishes a state that is near the best."""
    if problem.log_cost(state) - problem.log_cost(problem.best) < math.log(NEAR):
        polish(problem, state, limit, progress)


def _colors(moves: Sequence[Move]) -> list[Move]:
    """The moves that tile more than single classes."""
    return [move for move in moves if not isinstance(move, LocalAction)]


def _kicked(problem: Problem, moves: list[Move], rng: random.Random) -> list[Move]:
    """Some random changes of moves: one is dropped, inserted or exchanged."""
    every = [*problem.moves, *followers(problem)]
    for _ in range(rng.randint(1, KICK)):
        kind = rng.random()
        if moves and kind < 0.4:
            moves.pop(rng.randrange(len(moves)))
        elif not moves or kind < 0.7:
            moves.insert(rng.randint(0, len(moves)), rng.choice(every))
        else:
            moves[rng.randrange(len(moves))] = rng.choice(every)
    return moves
