"""Iterated local search: refinement of good starts, of the empty plan, and of what random changes
make of the best.

What single changes lead to depends on where they start: from the empty plan one finds strategies
that nobody wrote, and from a start plans of so many decisions that none of them helps alone. What
is best before its single classes are looked at need not be best afterwards. So the best start is
polished; then the moves of the empty plan are changed as long as it helps, and what comes of that
is polished, too. Then other starts are polished, and the moves of the best ones changed. The rest
of the budget goes to the best plans, disturbed and refined again.

*Iterated Local Search*, Lourenço, Martin and Stützle, in Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

import math
import random

from partita.search.best_first import best_first, plain
from partita.search.bounds import lower_bound
from partita.search.laid import relaxed_starts
from partita.search.problem import NOISE, Move, Problem, Rank, SearchState
from partita.search.protocol import SearchProgress, register
from partita.search.refine import changes, climb, polish
from partita.search.simplified import simplified
from partita.search.starts import best_starts, followers
from partita.tiling import LocalAction

POLISHED, CLIMBED = 5, 2
"""Starts that are polished, and of those the ones whose moves are changed, too."""

RELAXED, RELAXING = 3, 2000
"""Plans of the relaxed problem that are polished, and the budget from which on they are looked for:
that takes seconds, whatever the budget."""

MOST_AXES = 2
"""Of more axes, the relaxed problem takes too long."""

PRICING, POLISHING, EMPTY, CLIMBING, AHEAD = 0.15, 0.15, 0.25, 0.15, 0.25
"""Of the budget: what pricing starts, polishing them, refining the empty plan, refining starts, and
best-first search may take at most."""

NEAR = 1.05
"""How much slower than the best of its kind a plan may be whose single classes are still looked at:
than the best whose classes have not been looked at."""

KICK = 3
"""Most random changes at a time."""

PATIENCE = 2000
"""Evaluations after which the search ends if nothing has become better by more than the noise."""

IDLE = 40
"""Disturbances in turn that may lead to nothing new; then the space is taken to be exhausted."""


@register("iterated")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best of all states seen. Only the disturbances are random."""
    _Search(problem, budget, progress).run(random.Random(seed))
    return problem.best


class _Search:
    def __init__(self, problem: Problem, budget: int, progress: SearchProgress) -> None:
        self.problem, self.budget, self.progress = problem, budget, progress
        self.limit = problem.evaluations + budget
        self.plain = problem.start
        """The best state whose single classes have not been looked at."""
        self.optima: list[SearchState] = []
        """What changes of moves have led to."""
        self.idle = self.improved = 0

    def run(self, rng: random.Random) -> None:
        """Looks until the budget is spent, or nothing is new."""
        problem = self.problem
        if not problem.moves:
            return
        skipped = problem.share * POLISHED
        starts = best_starts(problem, skipped + POLISHED, self._share(PRICING))[skipped:]
        ranks = list(map(self._polish, starts[:1]))
        if not problem.share:  # before other starts: the best plans come from here more often
            self._climb(problem.start, self._share(EMPTY))
        ranks += map(self._polish, starts[1:])
        for number in sorted(range(len(starts)), key=ranks.__getitem__)[:CLIMBED]:
            self._climb(starts[number], self._share(CLIMBING / CLIMBED))
        if self.budget >= RELAXING and len(problem.axes) <= MOST_AXES and not problem.share:
            self._relax()
        if not self._proven():
            self._ahead()
        self.improved = problem.evaluations
        while not self._done():
            before = problem.evaluations, problem.best
            if rng.random() < 0.5:
                self._change(rng)
            else:
                self._disturb(rng)
            self._note(*before)

    def _polish(self, start: SearchState) -> Rank:
        """Decides the single classes of a start: how good it is then."""
        found = polish(self.problem, start, self._share(POLISHING), self.progress)
        return self.problem.rank(found)

    def _ahead(self) -> None:
        """Goes on from what was found to plans behind others that are worse."""
        problem = self.problem
        found = best_first(problem, self.optima, self._share(AHEAD), self.progress)
        self.plain = min([self.plain, *found], key=problem.rank)
        for state in problem.different(found, POLISHED):
            if self._near(state, self.plain):
                polish(problem, state, self.limit, self.progress)

    def _relax(self) -> None:
        """Starts from layouts that are free for every class, near the lower bound."""
        problem = self.problem
        spent = problem.evaluations >= self.limit
        bound = lower_bound(problem, plans=()) if spent else lower_bound(problem)
        if bound is None:
            return
        problem.least = bound.seconds
        if spent:
            return
        for moves in relaxed_starts(problem, RELAXED, self._share(PRICING), bound):
            state = simplified(problem, problem.replay(moves))
            polish(problem, state, self.limit, self.progress)

    def _change(self, rng: random.Random) -> None:
        """Makes one change to the moves of the best, and decides single classes again then."""
        problem = self.problem
        moves = plain(problem.best.moves)
        local = (move for move in problem.best.moves if isinstance(move, LocalAction))
        changed = rng.choice([moves, *changes(problem, moves)])
        state = problem.replay((*changed, *local), self.limit)
        if self._near(state, problem.best):
            polish(problem, state, self.limit, self.progress)

    def _disturb(self, rng: random.Random) -> None:
        """Refines what several random changes make of the best."""
        problem = self.problem
        kicked = _kicked(problem, list(plain(problem.best.moves)), rng)
        self._climb(problem.replay(kicked, self.limit), self.limit)

    def _note(self, evaluations: int, best: SearchState) -> None:
        """Counts since when nothing has become better, and since when nothing was new."""
        now = self.problem.evaluations
        self.idle = 0 if now > evaluations else self.idle + 1
        gained = self.problem.log_cost(best) - self.problem.log_cost(self.problem.best)
        if gained > NOISE:
            self.improved = now

    def _done(self) -> bool:
        now = self.problem.evaluations
        tired = self.idle >= IDLE or now - self.improved > PATIENCE
        return now >= self.limit or tired or self._proven()

    def _proven(self) -> bool:
        """Whether no plan is better than the best by more than the noise."""
        problem, best = self.problem, self.problem.best
        fits = best.cost.peak <= problem.cost_model.capacity
        return fits and problem.time(best) <= problem.least * (1 + NOISE)

    def _near(self, state: SearchState, best: SearchState) -> bool:
        """Whether a state may become better than the best when single classes are looked at."""
        return self.problem.log_cost(state) - self.problem.log_cost(best) < math.log(NEAR)

    def _share(self, share: float) -> int:
        """A limit of evaluations: this share of the budget from here on."""
        return min(self.limit, self.problem.evaluations + round(share * self.budget))

    def _climb(self, state: SearchState, limit: int) -> None:
        """Changes the moves of a state, and polishes what is near the best of that."""
        problem = self.problem
        climbed = climb(problem, state, limit, self.progress)
        self.optima.append(climbed)
        self.plain = min(self.plain, climbed, key=problem.rank)
        if self._near(climbed, self.plain):
            polish(problem, climbed, self.limit, self.progress)


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
