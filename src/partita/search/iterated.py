"""Iterated local search: refinement of good starts, of the empty plan, and of what random changes
make of the best.

What single changes lead to depends on where they start: from the empty plan one finds strategies
that nobody wrote, and from a start plans of so many decisions that none of them helps alone. What
is best before its single classes are looked at need not be best afterwards. So the moves of the
empty plan are changed as long as it helps, and what comes of that is polished; then starts are
polished, those first that promise most, and the moves of the best ones changed. From all of these
best-first search goes on; the rest is for the best plan, disturbed and refined again.

Before most of it, all but the disturbances is done on meshes on which some axes are one: what is
found there is where to start from, too.

*Iterated Local Search*, Lourenço, Martin and Stützle, in Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

import math
import random

from partita.decisions import DecisionGroup, ShardClass
from partita.mesh import Mesh
from partita.search.best_first import best_first, plain
from partita.search.bounds import lower_bound
from partita.search.bounds.bound import relaxed_problem
from partita.search.bounds.relaxed import Relaxed
from partita.search.coarse import Coarse, coarsened
from partita.search.history import HistoryHeuristic
from partita.search.problem import NOISE, Move, Problem, Rank, SearchState
from partita.search.promising import promising
from partita.search.protocol import SearchProgress, register
from partita.search.refine import CHANGES, climb, polish
from partita.search.relaxed_starts import relaxed_starts
from partita.search.simplified import simplified
from partita.search.starts import best_starts, followers

POLISHED, CLIMBED = 5, 2
"""Starts that are polished, and of those the ones whose moves are changed, too."""

RELAXED, RELAXING = 3, 2000
"""Plans near the lower bound that may be polished beside starts, and the budget from which on there
is the relaxed problem: that takes seconds, whatever the budget."""

DESCENDED = 100
"""Starts whose promise is looked at, if there is the relaxed problem."""

MOST_AXES = 2
"""Of more axes, the relaxed problem takes too long."""

COARSE, READ = 8000, 3
"""Evaluations of a search on a coarser mesh, or half of the effort if that is less, beside those on
meshes that are coarser still; and how many of its plans are read on the mesh itself."""

AWAY = 2 / 3
"""Of the budget that is left, what searches on coarser meshes take at most, all that they lead to
included."""

FIRST = 1_200_000
"""Plans times classes of operations that refining the empty plan takes before there is a search on
a coarser mesh: a plan of many classes takes longer to evaluate."""

EFFORT = 2000
"""Evaluations that all before best-first search takes at most, for every subset of the axes: moves
can be changed along any of them. The budget may be less."""

PRICING, POLISHING, EMPTY, CLIMBING, AHEAD, AGAIN = 0.15, 0.5, 0.3, 0.3, 0.4, 0.25
"""Of the effort: what pricing starts, polishing them, refining the empty plan, refining starts,
best-first search, and polishing what it finds may take at most."""

NEAR = 1.05
"""How much slower than the best of its kind a plan may be whose single classes are still looked at:
than the best whose classes have not been looked at."""

CLOSE = 1.005
"""The same, of a plan that has been adapted: single changes of classes gain little more."""

TRY = 10
"""What a try counts for at least, so that of two kinds of disturbances neither is left alone."""

KICK = 3
"""Most random changes at a time."""

PATIENCE = 2000
"""Evaluations after which the search ends if nothing has become better by more than the noise; for
every axis more than two, four times as many."""

IDLE = 40
"""Disturbances in turn that may lead to nothing new; then the space is taken to be exhausted."""


@register("iterated")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best of all states seen. Only the disturbances are random."""
    looking = _Search(problem, budget, progress)
    if problem.moves:
        usual = looking.systematic()
        looking.disturb(random.Random(seed), usual)
    return problem.best


class _Search:
    def __init__(
        self,
        problem: Problem,
        budget: int,
        progress: SearchProgress,
        most: int | None = None,
        known: dict[Mesh, Problem] | None = None,
    ) -> None:
        """Prepares it.

        Args:
          problem: what is searched.
          budget: how many states may be evaluated.
          progress: called now and then.
          most: how many together with those on coarser meshes; by default no more than without.
          known: the problem on coarser meshes, as far as other searches looked at some.
        """
        self.problem, self.budget, self.progress = problem, budget, progress
        self.most = problem.evaluations + (budget if most is None else most)
        self.known = {} if known is None else known
        """The problem on coarser meshes, those of other searches included."""
        self.effort = min(budget, EFFORT << len(problem.axes))
        self.limit = problem.evaluations + self.effort
        """How many states may have been evaluated in all for now."""
        self.end = problem.evaluations + budget
        """How many in the end."""
        self.plain = problem.start
        """The best state whose single classes have not been looked at."""
        self.optima: list[SearchState] = []
        """What changes of moves have led to."""
        self.learned = HistoryHeuristic(problem, self.end)
        self.patience = PATIENCE << 2 * max(0, len(problem.axes) - MOST_AXES)
        self.idle = self.improved = 0

    def systematic(self) -> int:
        """Looks where something is known of what helps.

        Returns:
          How many states may be evaluated in all before it takes gains to go on.
        """
        problem = self.problem
        skipped, count = problem.share * POLISHED, DESCENDED if self._relaxes() else POLISHED
        first, coarser = problem.start, list[SearchState]()
        if not problem.share:  # before all else: good plans come from here sooner
            soon = problem.evaluations + FIRST // max(1, len(problem.graph.ops))
            until = min(soon, self._share(EMPTY))
            first = climb(problem, first, until, self.progress)
            self._polish(first, until)
            coarser = self._from_coarser()
            self._climb(first, self._share(EMPTY))
        starts = best_starts(problem, skipped + count, self._share(PRICING))[skipped:]
        for start in self._polished([*starts, *coarser])[:CLIMBED]:
            self._climb(start, self._share(CLIMBING / CLIMBED))
        usual, self.limit = self.limit, self.end
        if not self._proven():
            self._ahead()
        return usual

    def disturb(self, rng: random.Random, usual: int) -> None:
        """Changes the best at random until so many states have been evaluated, or as long as that
        helps, or nothing is new."""
        problem = self.problem
        self.improved = min(problem.evaluations, usual - self.patience)
        spent = {self._change: 0, self._disturb: 0}
        while not self._done():
            before = problem.evaluations, problem.best
            turn = min(spent, key=spent.__getitem__)
            turn(rng)
            spent[turn] += max(TRY, problem.evaluations - before[0])
            self._note(*before)

    def _relaxes(self) -> bool:
        """Whether the relaxed problem is worth its time, and of this problem."""
        problem = self.problem
        small = self.budget < RELAXING or len(problem.axes) > MOST_AXES
        return not small and not problem.share and problem.everything

    def _polished(self, starts: list[SearchState]) -> list[SearchState]:
        """Starts that have been polished, the best of what came of them first; plans near the lower
        bound count as starts."""
        problem = self.problem
        pairs = [(start, start) for start in starts]
        relaxed = relaxed_problem(problem) if self._relaxes() else None
        if relaxed:
            promises = promising(problem, relaxed, starts, self._share(PRICING))
            pairs = [(each.start, each.best) for each in promises]
            pairs += [(state, state) for state in self._relaxed(relaxed)]
        pairs.sort(key=lambda pair: problem.rank(pair[1]))
        polished: dict[int, tuple[Rank, SearchState]] = {}
        until = self._share(POLISHING)
        for start, state in pairs[: 2 * POLISHED]:
            if len(polished) == POLISHED or problem.evaluations >= until:
                break
            state = simplified(problem, state)
            if state.key not in polished:
                found = self._polish(state, until)
                polished[state.key] = problem.rank(found), self._climbable(start, state)
        return [start for _, start in sorted(polished.values(), key=lambda each: each[0])]

    def _climbable(self, start: SearchState, simple: SearchState) -> SearchState:
        """A start, or if nothing of it can be changed, since it lays out every class for itself,
        what of it can when it is told more simply."""
        if not any(isinstance(move, DecisionGroup) for move in start.moves):
            return start
        moves = [move for move in plain(simple.moves) if not isinstance(move, DecisionGroup)]
        return self.problem.replay(moves, self.limit)

    def _from_coarser(self) -> list[SearchState]:
        """What the best plans of coarser meshes are on this one: of each mesh the best few.

        What is evaluated there counts, but is no effort here.
        """
        problem, found = self.problem, list[SearchState]()
        every = coarsened(problem, min(len(problem.axes) - 1, MOST_AXES), self.known)
        for number, coarse in enumerate(every):
            there, told, before = coarse.problem, self._telling(coarse), problem.evaluations
            if not there.evaluations:
                room = int(AWAY * (self.most - before)) // (len(every) - number)
                budget = min(COARSE, self.effort // 2, room)
                _Search(there, budget, told, room, self.known).systematic()
            best = [simplified(there, state) for state in there.proposals(READ)]
            told(there.evaluations, there.best)
            spent = problem.evaluations - before
            self.end = min(self.end + spent, self.most)
            self.limit = min(self.limit + spent, self.end)
            for state in best:
                found += (problem.replay(moves, self.limit) for moves in coarse.moves(state))
        return problem.different(found, POLISHED)

    def _telling(self, coarse: Coarse) -> SearchProgress:
        """Told of the progress of a search on a coarser mesh, and tells on; each plan that is the
        best so far there is read here at once."""
        problem, there = self.problem, coarse.problem
        seen, counted = there.start, there.evaluations

        def told(done: int, best: SearchState) -> None:
            nonlocal seen, counted
            problem.evaluations += done - counted
            counted = done
            if best is not seen:
                seen = best
                problem.replay(next(coarse.moves(best)), self.limit)
            self.progress(problem.evaluations, problem.best)

        return told

    def _relaxed(self, relaxed: Relaxed) -> list[SearchState]:
        """Plans in which layouts are free for every class, near the lower bound."""
        problem = self.problem
        bound = lower_bound(problem, relaxed=relaxed)
        if bound is None:
            return []
        problem.least = bound.seconds
        found = relaxed_starts(problem, RELAXED, self._share(PRICING), bound)
        return [problem.replay(moves) for moves in found]

    def _ahead(self) -> None:
        """Goes on from what was found to plans behind others that are worse, and polishes those of
        which most becomes."""
        problem = self.problem
        until = self._share(AHEAD)
        found = best_first(problem, self.optima, until, self.progress, self._adapted)
        until = self._share(AGAIN)
        for state in problem.different(found, POLISHED):
            if self._near(state, problem.best):
                self._polish(state, until)

    def _adapted(self, state: SearchState) -> SearchState:
        """What may become of a plan, if it is near the best."""
        self.plain = min(self.plain, state, key=self.problem.rank)
        return self.learned.adapted(state) if self._near(state, self.plain) else state

    def _change(self, rng: random.Random) -> None:
        """Makes some changes to the moves of the best, and decides single classes again then."""
        problem, best = self.problem, self.problem.best
        moves = plain(best.moves)
        local = (move for move in best.moves if isinstance(move, ShardClass))
        for _ in range(rng.randint(1, KICK)):
            kind = rng.choice(CHANGES)
            moves = rng.choice([*kind(problem, moves)] or [moves])
        state = problem.replay((*moves, *local), self.limit)
        if self._near(state, best):
            state = self.learned.adapted(state)
            if self._near(state, best, CLOSE):
                self._polish(state, self.limit, best)

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
        tired = self.idle >= IDLE or now - self.improved > self.patience
        return now >= self.limit or tired or self._proven()

    def _proven(self) -> bool:
        """Whether no plan is better than the best by more than the noise."""
        problem, best = self.problem, self.problem.best
        fits = best.cost.peak <= problem.cost_model.capacity
        return fits and problem.time(best) <= problem.least * (1 + NOISE)

    def _near(self, state: SearchState, best: SearchState, near: float = NEAR) -> bool:
        """Whether a state may become better than the best when single classes are looked at."""
        return self.problem.log_cost(state) - self.problem.log_cost(best) < math.log(near)

    def _share(self, share: float) -> int:
        """A limit of evaluations: this share of the effort from here on."""
        return min(self.limit, self.problem.evaluations + round(share * self.effort))

    def _polish(
        self, state: SearchState, limit: int, like: SearchState | None = None
    ) -> SearchState:
        """Changes single classes, and learns which of that helps."""
        found = polish(self.problem, state, limit, self.progress, like)
        self.learned.note(found)
        return found

    def _climb(self, state: SearchState, limit: int) -> None:
        """Changes the moves of a state, and polishes what is near the best of that."""
        problem = self.problem
        climbed = climb(problem, state, limit, self.progress)
        self.optima.append(climbed)
        self.plain = min(self.plain, climbed, key=problem.rank)
        if self._near(climbed, self.plain):
            self._polish(climbed, self.limit)


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
