"""Iterated local search: refines good starts, the empty plan, and random changes of the best plan.

The plans that single changes lead to depend on the start. The empty plan leads to strategies that
no expert wrote; a good start leads to plans of many decisions, none of which helps alone. The best
plan before its single classes are changed need not be the best afterwards. So the search goes on in
this order:

- change the moves of the empty plan as long as that helps, and polish the result;
- polish starts, the most promising first, and change the moves of the best ones;
- continue with best-first search from all of these;
- spend the rest of the budget on the best plan, disturbed and refined again.

Before most of that, all steps except the last run on coarser meshes, on which some axes are joined.
The plans found there are starts, too.

*Iterated Local Search*, Lourenço, Martin and Stützle, in Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable

from partita.decisions import DecisionGroup, ShardClass
from partita.mesh import Mesh
from partita.search.best_first import best_first, plain
from partita.search.bounds import lower_bound
from partita.search.bounds.bound import relaxed_problem
from partita.search.bounds.relaxed import Relaxed
from partita.search.coarse import Coarse, coarsened
from partita.search.history import HistoryHeuristic
from partita.search.problem import NOISE, Move, Problem, Rank, SearchState
from partita.search.protocol import SearchProgress, register
from partita.search.refine import CHANGES, climb, polish
from partita.search.relaxed_starts import Promise, promising, relaxed_starts
from partita.search.simplified import simplified
from partita.search.starts import best_starts, followers

POLISHED, CLIMBED = 5, 2
"""Number of starts to polish, and of those whose moves are changed, too."""

RELAXED, RELAXING = 3, 2000
"""Number of plans near the lower bound to polish in addition to starts; least budget for the
relaxed problem, which takes seconds, whatever the budget."""

DESCENDED = 100
"""Number of starts whose promise is computed, if there is the relaxed problem."""

MOST_AXES = 2
"""Most axes of a relaxed problem; with more, it takes too long."""

COARSE, READ = 8000, 3
"""Evaluations of a search on a coarser mesh, or half of the effort if that is less; number of its
plans to read on the mesh itself. Evaluations on still coarser meshes are not included."""

AWAY = 2 / 3
"""Largest share of the remaining budget to spend on coarser meshes, and on still coarser ones."""

FIRST = 1_200_000
"""Plans times operation classes to spend on refining the empty plan before a search on coarser
meshes: a plan of many classes takes longer to evaluate."""

EFFORT = 2000
"""Most evaluations before best-first search, for every subset of the axes: moves can be changed
along any of them. The budget may be less."""

PRICING, POLISHING, EMPTY, CLIMBING, AHEAD, AGAIN = 0.15, 0.5, 0.3, 0.3, 0.4, 0.25
"""Largest shares of the effort for pricing starts, polishing them, refining the empty plan,
refining starts, best-first search, and polishing its results."""

NEAR = 1.05
"""Largest ratio of cost at which the single classes of a plan are still changed, to the best plan
without such changes."""

CLOSE = 1.005
"""Same ratio for an adapted plan: single changes of classes gain little more."""

TRY = 10
"""Least evaluations that a try counts for, so that neither kind of disturbance starves."""

KICK = 3
"""Most random changes in one disturbance."""

PATIENCE = 2000
"""Evaluations after which the search ends without a gain of more than the noise; four times as many
for every axis more than two."""

IDLE = 40
"""Most disturbances in turn that find no new state; then the space counts as exhausted."""


@register("iterated")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Returns the best of all states seen. Only the disturbances are random."""
    if problem.moves:
        _Search(problem, budget, progress, random.Random(seed)).run()
    return problem.best


class _Search:
    def __init__(
        self,
        problem: Problem,
        budget: int,
        progress: SearchProgress,
        rng: random.Random | None = None,
        most: int | None = None,
        known: dict[Mesh, Problem] | None = None,
    ) -> None:
        """Prepares the search.

        Args:
          problem: the problem to search.
          budget: the most states to evaluate.
          progress: called now and then.
          rng: chooses the disturbances; None for a search without them.
          most: the most states, those on coarser meshes included; by default the budget.
          known: cache of problems on coarser meshes, from other searches.
        """
        self.problem, self.budget, self.progress, self.rng = problem, budget, progress, rng
        self.most = problem.evaluations + (budget if most is None else most)
        self.known = {} if known is None else known
        """Cache of problems by coarser mesh, those of other searches included."""
        self.effort = min(budget, EFFORT << len(problem.axes))
        self.usual = self.limit = problem.evaluations + self.effort
        """Most states that may have been evaluated in all: without gains, and for now."""
        self.end = problem.evaluations + budget
        """Most states that may have been evaluated in all at the end."""
        self.first = problem.start
        """Empty plan, refined."""
        self.candidates: list[Promise] = []
        """Starts to polish."""
        self.starts: list[SearchState] = []
        """Starts whose moves to change, best first."""
        self.plain = problem.start
        """Best state without changes of single classes."""
        self.optima: list[SearchState] = []
        """Local optima that changes of moves have led to."""
        self.learned = HistoryHeuristic(problem, self.end)
        self.patience = PATIENCE << 2 * max(0, len(problem.axes) - MOST_AXES)
        self.idle = self.improved = 0

    def run(self) -> None:
        """Goes through all phases; the first ones only if no other search does."""
        for phase in PHASES:
            if not (self.problem.share and phase in ALONE):
                phase(self)

    def refine_empty(self) -> None:
        """Refines the empty plan for a short while: good plans come from here soonest."""
        problem = self.problem
        soon = problem.evaluations + FIRST // max(1, len(problem.graph.ops))
        until = min(soon, self._share(EMPTY))
        self.first = climb(problem, self.first, until, self.progress)
        self._polish(self.first, until)

    def search_coarser(self) -> None:
        """Searches coarser meshes; the best few plans of each, read on this mesh, are candidates.

        Evaluations there count for the total, but not as effort here.
        """
        problem, found = self.problem, list[SearchState]()
        every = coarsened(problem, min(len(problem.axes) - 1, MOST_AXES), self.known)
        for number, coarse in enumerate(every):
            there, told, before = coarse.problem, self._telling(coarse), problem.evaluations
            if not there.evaluations:
                room = int(AWAY * (self.most - before)) // (len(every) - number)
                budget = min(COARSE, self.effort // 2, room)
                _Search(there, budget, told, None, room, self.known).run()
            best = [simplified(there, state) for state in there.proposals(READ)]
            told(there.evaluations, there.best)
            spent = problem.evaluations - before
            self.end = min(self.end + spent, self.most)
            self.usual = self.limit = min(self.limit + spent, self.end)
            for state in best:
                found += (problem.replay(moves, self.limit) for moves in coarse.moves(state))
        self._add(problem.different(found, POLISHED))

    def refine_empty_further(self) -> None:
        """Refines the empty plan as long as that helps."""
        self._climb(self.first, self._share(EMPTY))

    def price_starts(self) -> None:
        """Evaluates starts; the best ones are candidates."""
        skipped = self.problem.share * POLISHED
        count = skipped + (DESCENDED if self._relaxes() else POLISHED)
        before, self.candidates = self.candidates, []
        self._add(best_starts(self.problem, count, self._share(PRICING))[skipped:])
        self.candidates += before

    def descend(self) -> None:
        """Orders candidates by what becomes of them if every class chooses its own layout."""
        if self.relaxed:
            starts = [each.start for each in self.candidates]
            self.candidates = promising(self.problem, self.relaxed, starts, self._share(PRICING))

    def bound(self) -> None:
        """Works out the lower bound; plans near it are candidates."""
        problem = self.problem
        bound = lower_bound(problem, relaxed=self.relaxed) if self.relaxed else None
        if bound is not None:
            problem.least = bound.seconds
            self._add(relaxed_starts(problem, bound, RELAXED, self._share(PRICING)))

    def polish_candidates(self) -> None:
        """Polishes the best candidates; they are the starts whose moves are changed next."""
        problem, until = self.problem, self._share(POLISHING)
        polished: dict[int, tuple[Rank, SearchState]] = {}
        best = sorted(self.candidates, key=lambda each: problem.rank(each.best))
        for each in best[: 2 * POLISHED]:
            if len(polished) == POLISHED or problem.evaluations >= until:
                break
            state = simplified(problem, each.best)
            if state.key not in polished:
                found = self._polish(state, until)
                polished[state.key] = problem.rank(found), self._climbable(each.start, state)
        self.starts = [start for _, start in sorted(polished.values(), key=lambda each: each[0])]

    def refine_starts(self) -> None:
        """Changes the moves of the best starts."""
        for start in self.starts[:CLIMBED]:
            self._climb(start, self._share(CLIMBING / CLIMBED))

    def look_ahead(self) -> None:
        """Continues with best-first search, past plans that are worse, and polishes the best."""
        problem, self.limit = self.problem, self.end
        if self._proven():
            return
        until = self._share(AHEAD)
        found = best_first(problem, self.optima, until, self.progress, self._adapted)
        until = self._share(AGAIN)
        for state in problem.different(found, POLISHED):
            if self._near(state, problem.best):
                self._polish(state, until)

    def disturb(self) -> None:
        """Changes the best plan at random, up to the usual evaluations, and on as that helps.

        Ends before if it finds no new states.
        """
        problem, self.limit = self.problem, self.end
        self.improved = min(problem.evaluations, self.usual - self.patience)
        spent = {self._change: 0, self._disturb: 0}
        while self.rng and not self._done():
            before = problem.evaluations, problem.best
            turn = min(spent, key=spent.__getitem__)
            turn(self.rng)
            spent[turn] += max(TRY, problem.evaluations - before[0])
            self._note(*before)

    def _relaxes(self) -> bool:
        """Returns whether this problem has a relaxed problem that is worth its time."""
        problem = self.problem
        small = self.budget < RELAXING or len(problem.axes) > MOST_AXES
        return not small and not problem.share and problem.everything

    @functools.cached_property
    def relaxed(self) -> Relaxed | None:
        """Relaxed problem, if it is worth its time."""
        return relaxed_problem(self.problem) if self._relaxes() else None

    def _add(self, starts: Iterable[SearchState]) -> None:
        self.candidates += (Promise(start, start) for start in starts)

    def _climbable(self, start: SearchState, simple: SearchState) -> SearchState:
        """Returns a start, or the moves of its simplified form if it decides every class by itself.

        The moves of such a start cannot be changed.
        """
        if not any(isinstance(move, DecisionGroup) for move in start.moves):
            return start
        moves = [move for move in plain(simple.moves) if not isinstance(move, DecisionGroup)]
        return self.problem.replay(moves, self.limit)

    def _telling(self, coarse: Coarse) -> SearchProgress:
        """Returns the progress function for a search on a coarser mesh, which passes progress on.

        Each new best plan there is read here at once.
        """
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

    def _adapted(self, state: SearchState) -> SearchState:
        """Adapts a plan if it is near the best; returns others unchanged."""
        self.plain = min(self.plain, state, key=self.problem.rank)
        return self.learned.adapted(state) if self._near(state, self.plain) else state

    def _change(self, rng: random.Random) -> None:
        """Changes some moves of the best plan, then adapts and polishes the result."""
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
        """Refines the best plan after several random changes."""
        problem = self.problem
        kicked = _kicked(problem, list(plain(problem.best.moves)), rng)
        self._climb(problem.replay(kicked, self.limit), self.limit)

    def _note(self, evaluations: int, best: SearchState) -> None:
        """Records when the search last improved, and how many turns found no new state."""
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
        """Returns whether the lower bound proves the best plan optimal, except for the noise."""
        problem, best = self.problem, self.problem.best
        fits = best.cost.peak <= problem.cost_model.capacity
        return fits and problem.time(best) <= problem.least * (1 + NOISE)

    def _near(self, state: SearchState, best: SearchState, near: float = NEAR) -> bool:
        """Returns whether changes of single classes may make a state better than the best."""
        return self.problem.log_cost(state) - self.problem.log_cost(best) < math.log(near)

    def _share(self, share: float) -> int:
        """Returns a limit of evaluations: this share of the effort from here on."""
        return min(self.limit, self.problem.evaluations + round(share * self.effort))

    def _polish(
        self, state: SearchState, limit: int, like: SearchState | None = None
    ) -> SearchState:
        """Changes single classes, and records which changes help."""
        found = polish(self.problem, state, limit, self.progress, like)
        self.learned.note(found)
        return found

    def _climb(self, state: SearchState, limit: int) -> None:
        """Changes the moves of a state, and polishes the result if it is near the best."""
        problem = self.problem
        climbed = climb(problem, state, limit, self.progress)
        self.optima.append(climbed)
        self.plain = min(self.plain, climbed, key=problem.rank)
        if self._near(climbed, self.plain):
            self._polish(climbed, self.limit)


PHASES: tuple[Callable[[_Search], None], ...] = (
    _Search.refine_empty,
    _Search.search_coarser,
    _Search.refine_empty_further,
    _Search.price_starts,
    _Search.descend,
    _Search.bound,
    _Search.polish_candidates,
    _Search.refine_starts,
    _Search.look_ahead,
    _Search.disturb,
)
"""The phases of the search, in order."""

ALONE = PHASES[:3]
"""Phases that only one of several searches goes through: the others would do the same."""


def _kicked(problem: Problem, moves: list[Move], rng: random.Random) -> list[Move]:
    """Returns moves after some random changes: one is dropped, inserted or exchanged."""
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
