"""Starts by the relaxed problem, in which every class chooses its own layout.

The cost of a start predicts badly what a search makes of it. Most of the cost may come from a few
classes that can change: say, operations that do not suit the one color group that leads along all
axes. So starts are ordered by the best plan that a descent from each reaches.

Near the lower bound there are plans that no small number of color moves describes. They are starts,
too, each as one group of decisions about single classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from partita.search.bounds import Bound
from partita.search.bounds.descent import Descents
from partita.search.bounds.relaxed import Relaxed
from partita.search.problem import Problem, SearchState
from partita.search.simplified import class_by_class

WEIGHT = 0.95
"""Weight of compute against links in the relaxed problem; below 1, so that links count, too."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """A start, and the best plan that a descent from it reaches."""

    start: SearchState
    best: SearchState
    """The better of the start and the ends of descents from it, all evaluated."""


def promising(
    problem: Problem, relaxed: Relaxed, starts: Iterable[SearchState], limit: int
) -> list[Promise]:
    """Returns starts, ordered by the best plan that a descent from each reaches.

    Args:
      problem: the problem to search.
      relaxed: its relaxed problem.
      starts: the starts to order.
      limit: the most states that may have been evaluated in all.
    """
    descents, found = Descents(relaxed, WEIGHT), list[Promise]()
    for start in starts:
        best = start
        for tiling in descents.tilings(start.lowering):
            if problem.evaluations >= limit:
                break
            end = problem.step(start, class_by_class(problem, tiling, start.tiling))
            if end is not None and problem.better(end, best):
                best = end
        found.append(Promise(start, best))
    return sorted(found, key=lambda promise: problem.rank(promise.best))


def relaxed_starts(problem: Problem, bound: Bound, count: int, limit: int) -> list[SearchState]:
    """Returns the best different plans found on the way to a lower bound.

    Args:
      problem: the problem to search.
      bound: its lower bound.
      count: the most plans to return.
      limit: the most states that may have been evaluated in all.
    """
    moves = [class_by_class(problem, tiling) for tiling in bound.tilings]
    return problem.different([problem.replay((move,), limit) for move in moves], count)
