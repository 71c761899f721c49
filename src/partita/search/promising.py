"""Starts worth polishing: those that a descent, in which each class chooses, improves most.

The cost of a start predicts that badly. Most of it may come from a few classes that can change:
say, operations that do not suit the one color group that leads along all axes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from partita.decisions import DecisionGroup
from partita.search.bounds.descent import Descents
from partita.search.bounds.relaxed import Relaxed
from partita.search.problem import Problem, SearchState
from partita.search.simplified import changed

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
            actions = tuple(changed(problem, start.tiling, tiling))
            end = problem.step(start, DecisionGroup(actions)) if actions else None
            if end is not None and problem.better(end, best):
                best = end
        found.append(Promise(start, best))
    return sorted(found, key=lambda promise: problem.rank(promise.best))
