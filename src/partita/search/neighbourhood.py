"""Neighbours of a plan that change moves along several axes at once.

A change that is made axis by axis often helps only once it is made along all of them. A parameter
that is sharded along two axes has to move to its other dimension along both; halfway there, it is
resharded in vain. So a plan for `data=4,model=8` is found on `data=4,model=4,more=2`, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import msgspec

from partita.decisions import ShardColor
from partita.search.problem import Move, Problem
from partita.search.starts import followers

Moves = tuple[Move, ...]


def multi_axis_changes(problem: Problem, moves: Moves) -> Iterator[Moves]:
    """Yields moves with the moves of one color changed along two axes or more.

    The color is dropped, put first or last, added, put in place of another, or loses a part.

    New moves take the axes in the order in which the others have them: dimensions that are split
    along the same axes in another order are exchanged.
    """
    order = [axis for axis in dict.fromkeys((*_axes(moves), *problem.axes)) if axis in problem.axes]
    added = _kinds(problem)
    for count in range(len(order), 1, -1):
        for axes in itertools.combinations(order, count):
            for color in _colors(moves):
                yield from _otherwise(problem, moves, color, axes)
            for kind in added:
                yield from _instead(moves, tuple(_along(kind, axis) for axis in axes), axes)


def _otherwise(
    problem: Problem, moves: Moves, color: int, axes: Collection[int]
) -> Iterator[Moves]:
    """Yields moves with those of a color along some axes dropped, first, last, or less a part."""
    mine = tuple(move for move in moves if _is_of(move, color, axes))
    if len(mine) > 1:
        rest = tuple(move for move in moves if move not in mine)
        yield from (rest, (*mine, *rest), (*rest, *mine))
        yield from _without_part(problem, moves, mine)


def _instead(moves: Moves, group: tuple[ShardColor, ...], axes: Collection[int]) -> Iterator[Moves]:
    """Yields moves with a group added at the end, at the front, or in place of another color's."""
    rest = tuple(move for move in moves if not _is_of(move, group[0].color, axes))
    yield from ((*rest, *group), (*group, *rest))
    for color in _colors(rest):
        others = tuple(move for move in rest if _is_of(move, color, axes))
        if others:
            at = rest.index(others[0])
            yield (*rest[:at], *group, *(move for move in rest[at:] if move not in others))


def _without_part(problem: Problem, moves: Moves, some: Moves) -> Iterator[Moves]:
    """Yields moves with a part of some left out, no longer left out, or alone left out."""
    counts = dict[ShardColor, int]()
    for move, tiling in zip(moves, problem.tilings(moves), strict=True):
        if isinstance(move, ShardColor) and move in some:
            propagation = move.whole(problem.propagator, tiling)
            counts[move] = len(problem.parts(propagation, move))
    most = max(counts.values())
    for part in range(most if most > 1 else 0):
        less, more, only = dict[Move, Move](), dict[Move, Move](), dict[Move, Move]()
        for move, count in counts.items():
            out = {part} if part < count else set[int]()
            less[move] = _without(move, {*move.without} | out)
            more[move] = _without(move, {*move.without} - out)
            only[move] = _without(move, out)
        yield from (tuple(new.get(move, move) for move in moves) for new in (less, more, only))


def _without(move: ShardColor, parts: Collection[int]) -> ShardColor:
    return msgspec.structs.replace(move, without=tuple(sorted(parts)))


def _kinds(problem: Problem) -> list[ShardColor]:
    """Returns all moves without an axis (-1), each once."""
    every = (*problem.moves, *followers(problem))
    return list(dict.fromkeys(_along(move, -1) for move in every))


def _along(move: ShardColor, axis: int) -> ShardColor:
    return msgspec.structs.replace(move, axis=axis)


def _axes(moves: Moves) -> Iterator[int]:
    return (axis for move in moves for axis in sorted(move.axes))


def _colors(moves: Moves) -> list[int]:
    return list(dict.fromkeys(move.color for move in moves if isinstance(move, ShardColor)))


def _is_of(move: Move, color: int, axes: Collection[int]) -> bool:
    return isinstance(move, ShardColor) and move.color == color and move.axis in axes
