"""Monte Carlo tree search over tile moves, with UCT and merged transpositions (as in TOAST).

Every state on the way is a complete plan, so each is a candidate. The value of a state is the best
cost seen at or below it, scaled to [0, 1] over all costs seen so far. After the tree search,
`refine` takes the last third of the budget.
"""

from __future__ import annotations

import dataclasses
import math
import random

from partita.decisions import ShardColor
from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register
from partita.search.refine import refine

EXPLORATION = 0.4
"""Weight of UCT's exploration term."""

STOP = 0.2
"""Chance that a random playout stops at each state."""


@dataclasses.dataclass
class _Visited:
    """Node of the tree: a state, in whatever order of moves it was reached, with statistics."""

    state: SearchState
    untried: list[ShardColor]
    children: list[tuple[ShardColor, _Visited]] = dataclasses.field(default_factory=list)
    visits: int = 0
    best: float = math.inf


@register("mcts")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Returns the best state of a tree search, refined."""
    of_tree = budget * 2 // 3
    best = tree_search(problem, of_tree, seed, progress)
    return refine(problem, best, budget - of_tree, progress)


def tree_search(
    problem: Problem,
    budget: int,
    seed: int,
    progress: SearchProgress = lambda done, best: None,
) -> SearchState:
    """Returns the best state found with at most `budget` newly evaluated states.

    Args:
      problem: the problem to search.
      budget: the most new states to evaluate.
      seed: the seed of the random playouts; equal seeds give equal results.
      progress: called with the number of states evaluated and the best so far.
    """
    return _Tree(problem, budget, random.Random(seed), progress).run()


class _Tree:
    def __init__(
        self,
        problem: Problem,
        budget: int,
        rng: random.Random,
        progress: SearchProgress,
    ) -> None:
        self.problem = problem
        self.budget = problem.evaluations + budget
        self.rng = rng
        self.progress = progress
        self.visited: dict[int, _Visited] = {}
        self.lowest = self.highest = problem.log_cost(problem.start)
        self.longest = 3 * len(problem.mesh.names) + 4

    def run(self) -> SearchState:
        if not self.problem.moves:
            return self.problem.best
        root = self._visit(self.problem.start)
        idle = 0
        # A small space is exhausted long before the budget: playouts that find nothing new end it.
        while self.problem.evaluations < self.budget and idle < 200:
            before = self.problem.evaluations
            self._iterate(root)
            idle = 0 if self.problem.evaluations > before else idle + 1
            self.progress(self.problem.evaluations, self.problem.best)
        return self.problem.best

    def _iterate(self, root: _Visited) -> None:
        path, at = [root], root
        while not at.untried and at.children and len(path) < self.longest:
            at = self._select(at)
            path.append(at)
        child = self._expand(at)
        if child is not None:
            path.append(child)
            at = child
        cost = min(self._see(at.state), self._playout(at.state, self.longest - len(path)))
        for each in path:
            each.visits += 1
            each.best = min(each.best, cost)

    def _select(self, at: _Visited) -> _Visited:
        span = max(self.highest - self.lowest, 1e-9)
        log_visits = math.log(at.visits + 1)

        def value(child: _Visited) -> float:
            exploit = (self.highest - child.best) / span
            return exploit + EXPLORATION * math.sqrt(log_visits / (child.visits + 1))

        return max((child for _, child in at.children), key=value)

    def _expand(self, at: _Visited) -> _Visited | None:
        while at.untried:
            move = at.untried.pop()
            state = self.problem.step(at.state, move)
            if state is not None and state.key != at.state.key:
                child = self._visit(state)
                at.children.append((move, child))
                return child
        return None

    def _playout(self, state: SearchState, depth: int) -> float:
        cost = math.inf
        for _ in range(depth):
            if self.rng.random() < STOP or self.problem.evaluations >= self.budget:
                break
            following = self.problem.step(state, self.rng.choice(self.problem.moves))
            if following is not None:
                state = following
                cost = min(cost, self._see(state))
        return cost

    def _see(self, state: SearchState) -> float:
        cost = self.problem.log_cost(state)
        self.lowest, self.highest = min(self.lowest, cost), max(self.highest, cost)
        return cost

    def _visit(self, state: SearchState) -> _Visited:
        known = self.visited.get(state.key)
        if known is None:
            untried = self.problem.moves.copy()
            self.rng.shuffle(untried)
            known = self.visited[state.key] = _Visited(state, untried)
        return known
