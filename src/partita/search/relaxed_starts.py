"""Starts of a search from the relaxed problem: a layout for each class, as one move.

The relaxation finds plans that no small number of color moves describes. `class_by_class` writes
such a plan as one group of decisions about single classes, from which a search can continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from partita.decisions import DecisionGroup, ShardClass
from partita.search.bounds import Bound, lower_bound
from partita.search.problem import Move, Problem
from partita.tiling import LAYOUTS, Tiling


def class_by_class(problem: Problem, tiling: Tiling) -> DecisionGroup:
    """Returns the move from the start of a problem to a tiling, as far as classes can follow.

    A class that has an axis at the start keeps it.
    """
    return DecisionGroup(tuple(_actions(problem, tiling)))


def relaxed_starts(
    problem: Problem, count: int, limit: int, bound: Bound | None = None
) -> tuple[tuple[Move, ...], ...]:
    """Returns the best different plans found on the way to a lower bound, as moves to start from.

    Each is evaluated.

    Args:
      problem: the problem to search.
      count: the most plans to return.
      limit: the most states that may have been evaluated in all.
      bound: the lower bound of the problem, if it is known.
    """
    if not problem.everything or not problem.axes:
        return ()
    bound = bound or lower_bound(problem)
    moves = [(class_by_class(problem, tiling),) for tiling in (bound.tilings if bound else ())]
    states = [problem.replay(each, limit) for each in moves]
    return tuple(state.moves for state in problem.different(states, count))


def _actions(problem: Problem, tiling: Tiling) -> Iterator[ShardClass]:
    graph, start = problem.graph, problem.start.tiling
    for place in np.flatnonzero(start.row != tiling.row).tolist():
        old, new = (LAYOUTS.all[each.row[place]] for each in (start, tiling))
        held = {axis for axes in old for axis in axes}  # what had an axis before keeps it
        kind: Literal["op", "value"] = "op" if place < start.count else "value"
        of = graph.ops[place] if kind == "op" else graph.values[place - start.count]
        for dim, axes in enumerate(new):
            yield from (ShardClass(kind, of.members[0], a, dim) for a in axes if a not in held)
