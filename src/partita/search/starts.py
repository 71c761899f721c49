"""Where a search starts: plans of few decisions that name no tensors, and those it is given.

In each of them one color group leads along some axes, or two along one each. All others follow, or
none does: the examples lead along one axis, say, hidden units along the other, then come all else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from partita.decisions import EVERY_COLOR, ShardColor
from partita.search.problem import Move, Problem, SearchState

LEADERS, PAIRED = 10, 5
"""Color groups that lead, and those that lead two at a time: those with most data."""


def followers(problem: Problem) -> list[ShardColor]:
    """For every axis, the move that all color groups make that still can."""
    return [ShardColor(EVERY_COLOR, axis) for axis in problem.axes] if problem.everything else []


def plain_starts(problem: Problem) -> Iterator[tuple[ShardColor, ...]]:
    """Sequences of moves in which one color group leads along some axes, then of two."""
    leading = list(dict.fromkeys((move.color, move.roles) for move in problem.moves))
    colors = list(dict.fromkeys(color for color, _ in leading))[:LEADERS]
    follow = {move.axis: move for move in followers(problem)}
    for count in range(1, len(problem.axes) + 1):
        for axes in itertools.combinations(problem.axes, count):
            for color, roles in leading:
                if color in colors:
                    lead = tuple(ShardColor(color, axis, roles) for axis in axes)
                    yield lead
                    if follow:
                        yield (*lead, *(follow[axis] for axis in axes))
    if follow:
        for first, second in itertools.permutations(colors[:PAIRED], 2):
            for axis, other in itertools.combinations(problem.axes, 2):
                lead = ShardColor(first, axis), ShardColor(second, other)
                yield (*lead, *follow.values())


def best_starts(problem: Problem, count: int, limit: int) -> list[SearchState]:
    """The best different plans among all starts, those that are given first.

    Args:
      problem: whose starts to evaluate.
      count: how many to return at most.
      limit: how many states may have been evaluated in all.
    """
    found: dict[int, SearchState] = {}
    for moves in _starts(problem):
        if problem.evaluations >= limit:
            break
        state = problem.replay(moves, limit)
        found.setdefault(state.key, state)
    return problem.different(found.values(), count)


def _starts(problem: Problem) -> Iterator[Sequence[Move]]:
    yield from problem.starts
    yield from plain_starts(problem)
