"""The relaxed problem as a method: layouts free for every class, near the lower bound, from which
the iterated local search starts.

As in Alpa (Zheng et al., 2022), every operation and value chooses a layout for itself, at costs of
single choices and of pairs; not an integer program finds them but message passing.
"""

from __future__ import annotations

import dataclasses

from partita.search import Problem, SearchState, iterated_search
from partita.search.bounds import lower_bound
from partita.search.protocol import SearchProgress
from partita.tiling import Propagation, Propagator, Tiling

STARTS = 2
"""How many of what is proposed the search starts from."""


@dataclasses.dataclass(frozen=True)
class Laid:
    """The move that lays out every class as a tiling does."""

    tiling: Tiling
    axis: int = 0

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """All classes that change."""
        sides = (self.tiling.ops, tiling.ops), (self.tiling.values, tiling.values)
        ops, values = (
            {index: 0 for index, (new, old) in enumerate(zip(*side, strict=True)) if new != old}
            for side in sides
        )
        return Propagation(self.tiling, ops, values)


def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """The best of what is proposed is where the search starts, too."""
    limit = problem.evaluations + budget
    bound = lower_bound(problem)
    moves = [(Laid(each),) for each in bound.tilings] if bound else []
    states = [problem.replay(each, limit) for each in moves]
    problem.starts = tuple(state.moves for state in problem.different(states, STARTS))
    return iterated_search(problem, limit - problem.evaluations, seed, progress)
