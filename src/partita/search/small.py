"""Small values kept replicated, all at once: a collective for each costs more than it saves."""

from __future__ import annotations

from collections.abc import Iterator

from partita.search.laid import Laid
from partita.search.problem import Problem, SearchState
from partita.tiling import NOWHERE, Layout, LocalAction, uses_axis

SIZES = (2**10, 2**14, 2**18, 2**22)
"""Bytes up to which values count as small; which of these it is, is tried."""


def small_replicated(problem: Problem, state: SearchState, limit: int) -> SearchState:
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
            after = problem.step(best, Laid(actions, axis)) if actions else None
            if after is not None and problem.better(after, best):
                best = after
    return best


def _leaving(problem: Problem, state: SearchState, axis: int, size: int) -> Iterator[LocalAction]:
    """What small values, and the operations that read and make nothing else, leave an axis by.

    What had it before the search keeps it.
    """
    graph, tiling, given = problem.graph, state.tiling, problem.start.tiling
    small = [value.value.type.bytes <= size for value in graph.values]

    def moved(now: Layout, before: Layout) -> bool:
        return uses_axis(now, axis) and not uses_axis(before, axis)

    for value, now, before in zip(graph.values, tiling.values, given.values, strict=True):
        if small[value.index] and moved(now, before):
            yield LocalAction("value", value.members[0], axis, NOWHERE)
    for op, now, before in zip(graph.ops, tiling.ops, given.ops, strict=True):
        inside = all(small[v] for row in (*op.operands, *op.results) for v in row)
        if inside and moved(now, before):
            yield LocalAction("op", op.members[0], axis, NOWHERE)
