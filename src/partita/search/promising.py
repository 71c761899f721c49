"""Which starts are worth polishing: those of which most becomes if every class chooses for itself.

The price of a start says little of that. What costs it most may be a few classes that can go
elsewhere, as where one group of colors leads along all axes and some operations would rather not.
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
"""Of compute against links in the relaxed problem: links count for something, too."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """A start, and what could become of it."""

    start: SearchState
    best: SearchState
    """The start, or where a descent from it ends, which are evaluated."""


def promising(
    problem: Problem, relaxed: Relaxed, starts: Iterable[SearchState], limit: int
) -> list[Promise]:
    """Starts, those first of which the best becomes.

    Args:
      problem: what is searched.
      relaxed: its relaxed problem.
      starts: what to order.
      limit: how many states may have been evaluated in all.
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
