"""Replicates small values, all at once: a collective for each costs more than it saves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.decisions import NOWHERE, DecisionGroup, ShardClass
from partita.search.problem import Problem, SearchState
from partita.tiling import LAYOUTS, uses_axis

SIZES = (2**10, 2**14, 2**18, 2**22)
"""Sizes in bytes up to which values count as small; all are tried."""


def replicate_small_values(problem: Problem, state: SearchState, limit: int) -> SearchState:
    """Returns the best of a state and of those with small values replicated along an axis.

    Axes and sizes are tried one after the other.

    Args:
      problem: the problem to search.
      state: a plan.
      limit: the most states that may have been evaluated in all.
    """
    best = state
    for axis in problem.axes:
        for size in SIZES:
            if not problem.everything or problem.evaluations >= limit:
                return best
            actions = tuple(_leaving(problem, best, axis, size))
            after = problem.step(best, DecisionGroup(actions)) if actions else None
            if after is not None and problem.better(after, best):
                best = after
    return best


def _leaving(problem: Problem, state: SearchState, axis: int, size: int) -> Iterator[ShardClass]:
    """Yields decisions that replicate small values, and operations on these alone, along an axis.

    Classes that had the axis before the search keep it.
    """
    tiling, given = state.tiling, problem.start.tiling

    def takes(row: np.ndarray) -> np.ndarray:
        numbers, each = np.unique(row, return_inverse=True)
        return np.array([uses_axis(LAYOUTS.all[n], axis) for n in numbers], dtype=bool)[each]

    places = np.flatnonzero((tiling.row != given.row) & (problem.largest <= size))
    places = places[takes(tiling.row[places]) & ~takes(given.row[places])]
    first = np.searchsorted(places, tiling.count)
    for place in (*places[first:].tolist(), *places[:first].tolist()):
        yield problem.class_move(problem.node(place), axis, NOWHERE)
