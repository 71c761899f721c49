"""Search over single arguments, as in Automap (Schaarschmidt et al., 2021): a move tiles one
dimension of one argument along one axis and propagates from there; a tree search looks for a
sequence of them.

So there are as many moves as there are dimensions of arguments, where colors have one for all that
must be split alike.
"""

from __future__ import annotations

import dataclasses
import math
import random

import msgspec

from partita.decisions import ShardColor
from partita.search import Problem, SearchState
from partita.search.protocol import SearchProgress

EXPLORATION = 0.4
"""Weight of the exploration term of UCT, for values in 0..1."""

STOP = 0.2
"""Chance that a random playout stops at each state."""

PATIENCE = 200
"""Playouts without a new state that end the search."""


@dataclasses.dataclass(frozen=True)
class ArgumentMove:
    """Tile a dimension of an argument along an axis, with the roles of a move on its color."""

    argument: int
    """The value class."""
    dim: int
    move: ShardColor


@dataclasses.dataclass
class _Node:
    state: SearchState
    untried: list[ArgumentMove]
    children: list[_Node] = dataclasses.field(default_factory=list)
    visits: int = 0
    best: float = math.inf


def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best state on the way."""
    return _Tree(problem, budget, random.Random(seed), progress).run()


def argument_moves(problem: Problem) -> list[ArgumentMove]:
    """All moves on arguments."""
    graph = problem.graph
    classes = dict.fromkeys(graph.value_class[v] for v in graph.program.arguments)
    return [
        ArgumentMove(argument, dim, move)
        for argument in classes
        for dim, color in enumerate(graph.values[argument].colors)
        for move in problem.moves
        if move.color == color
    ]


def step(problem: Problem, state: SearchState, chosen: ArgumentMove) -> SearchState | None:
    """The state after a move on an argument; None if the argument cannot take the axis.

    What propagates from an argument is the part of what the color's move takes that the argument
    is in, so the state has moves that lead to it like any other.
    """
    parts = problem.parts(problem.propagation(state, chosen.move), chosen.move)
    node = ("value", chosen.argument, chosen.dim)
    if not any(node in part for part in parts):
        return None
    without = tuple(number for number, part in enumerate(parts) if node not in part)
    return problem.step(state, msgspec.structs.replace(chosen.move, without=without))


class _Tree:
    def __init__(
        self, problem: Problem, budget: int, rng: random.Random, progress: SearchProgress
    ) -> None:
        self.problem, self.rng, self.progress = problem, rng, progress
        self.limit = problem.evaluations + budget
        self.moves = argument_moves(problem)
        self.steps: dict[tuple[int, ArgumentMove], SearchState | None] = {}
        self.best = problem.start
        self.lowest = self.highest = problem.log_cost(problem.start)

    def run(self) -> SearchState:
        root, idle = self._node(self.problem.start), 0
        while self.moves and self.problem.evaluations < self.limit and idle < PATIENCE:
            before = self.problem.evaluations
            self._iterate(root)
            idle = 0 if self.problem.evaluations > before else idle + 1
            self.progress(self.problem.evaluations, self.best)
        return self.best

    def _iterate(self, root: _Node) -> None:
        path = [root]
        while not path[-1].untried and path[-1].children:
            path.append(self._select(path[-1]))
        at = path[-1]
        while at.untried:
            state = self._step(at.state, at.untried.pop())
            if state is not None and state.key != at.state.key:
                path.append(self._node(state))
                at.children.append(path[-1])
                break
        cost = self._playout(path[-1].state)
        for node in path:
            node.visits += 1
            node.best = min(node.best, cost)

    def _select(self, at: _Node) -> _Node:
        span = max(self.highest - self.lowest, 1e-9)
        more = math.log(at.visits + 1)

        def value(child: _Node) -> float:
            explore = EXPLORATION * math.sqrt(more / (child.visits + 1))
            return (self.highest - child.best) / span + explore

        return max(at.children, key=value)

    def _playout(self, state: SearchState) -> float:
        cost = self._see(state)
        while self.rng.random() >= STOP and self.problem.evaluations < self.limit:
            state = self._step(state, self.rng.choice(self.moves)) or state
            cost = min(cost, self._see(state))
        return cost

    def _see(self, state: SearchState) -> float:
        cost = self.problem.log_cost(state)
        self.lowest, self.highest = min(self.lowest, cost), max(self.highest, cost)
        self.best = min(self.best, state, key=self.problem.rank)
        return cost

    def _step(self, state: SearchState, move: ArgumentMove) -> SearchState | None:
        key = (state.key, move)
        if key not in self.steps:
            self.steps[key] = step(self.problem, state, move)
        return self.steps[key]

    def _node(self, state: SearchState) -> _Node:
        untried = self.moves.copy()
        self.rng.shuffle(untried)
        return _Node(state, untried)
