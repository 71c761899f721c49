"""Starts of a search: plans of few decisions that name no tensors, and plans that are given.

In each of them one color group is tiled first along some axes, or two along one each. Then all
others follow, or none does: say, the batch along one axis, hidden units along the other, then all
else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from partita.decisions import EVERY_COLOR, ShardColor
from partita.search.problem import Move, Problem, SearchState

LEADERS, PAIRED = 10, 5
"""Number of color groups that lead alone, and in pairs: those with most data."""


def followers(problem: Problem) -> list[ShardColor]:
    """Returns for every axis the move that tiles all color groups that still can take it."""
    return [ShardColor(EVERY_COLOR, axis) for axis in problem.axes] if problem.everything else []


def plain_starts(problem: Problem) -> Iterator[tuple[ShardColor, ...]]:
    """Yields sequences of moves in which one color group leads, then those in which two do."""
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
    """Returns the best different plans among all starts; evaluates given ones first.

    Args:
      problem: the problem whose starts to evaluate.
      count: the most plans to return.
      limit: the most states that may have been evaluated in all.
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
