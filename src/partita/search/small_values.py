"""Replicates small values, all at once: a collective for each costs more than it saves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.decisions import NOWHERE, DecisionGroup, ShardClass
from partita.search.problem import Problem, SearchState
from partita.tiling import LAYOUTS, uses_axis

SIZES = (2**10, 2**14, 2**18, 2**22)
"""Bytes up to which values count as small; which of these it is, is tried."""


def replicate_small_values(problem: Problem, state: SearchState, limit: int) -> SearchState:
    """The best of a state and of those in which small values leave an axis, one after the other.

    Args:
      problem: what is searched.
      state: a plan.
      limit: how many states may have been evaluated in all.
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
    """What small values, and the operations that read and make nothing else, leave an axis by.

    What had it before the search keeps it.
    """
    graph, tiling, given = problem.graph, state.tiling, problem.start.tiling

    def takes(row: np.ndarray) -> np.ndarray:
        numbers, each = np.unique(row, return_inverse=True)
        return np.array([uses_axis(LAYOUTS.all[n], axis) for n in numbers], dtype=bool)[each]

    places = np.flatnonzero((tiling.row != given.row) & (problem.largest <= size))
    places = places[takes(tiling.row[places]) & ~takes(given.row[places])]
    first = np.searchsorted(places, tiling.count)
    for place in places[first:].tolist():
        value = graph.values[place - tiling.count]
        yield ShardClass("value", value.members[0], axis, NOWHERE)
    for place in places[:first].tolist():
        yield ShardClass("op", graph.ops[place].members[0], axis, NOWHERE)
