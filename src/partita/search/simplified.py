"""The same plan in fewer decisions: moves of color groups, and the classes that differ.

A plan with a decision for every class tells its reader nothing. A few tile actions make up most of
it; much of the rest makes no difference in the cost model.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import msgspec

from partita.decisions import NOWHERE, DecisionGroup, ShardClass, ShardColor
from partita.search.problem import NOISE, ClassNode, Move, Problem, SearchState
from partita.search.starts import followers
from partita.tiling import LAYOUTS, Axes, Layout, Node, Tiling

FEW = 30
"""Most changes of classes that are single moves; more are grouped into one."""

MOST_TILES = 24
"""Most tile actions."""

MEMORY = 1.1
"""Largest ratio of memory after to before, as long as the plan fits."""

EACH = 3
"""Least number of places that a tile action has right minus wrong."""


def simplified(problem: Problem, state: SearchState) -> SearchState:
    """Returns a state of the same cost, except for noise, with fewer moves if possible.

    It evaluates more states: about two for each class whose layout tile actions do not reach.
    """
    local = sum(isinstance(move, ShardClass) for move in state.moves)
    if local <= FEW and not any(isinstance(move, DecisionGroup) for move in state.moves):
        return state
    tiles, tiling = covering(problem, state.tiling)
    left = _without_needless(problem, state, tiling)
    rest: tuple[Move, ...] = tuple(changed(problem, tiling, left.tiling))
    if len(rest) > FEW:
        actions = tuple(action for action in rest if isinstance(action, ShardClass))
        rest = (DecisionGroup(actions),)
    found = problem.replay((*tiles, *rest))
    return found if _as_good(problem, found, state) else state


def covering(problem: Problem, target: Tiling) -> tuple[tuple[ShardColor, ...], Tiling]:
    """Returns tile actions after which the layouts of as few classes as possible differ.

    They are chosen greedily: each time the action that gains most.

    Returns:
      The actions, and the tiling that they lead to.
    """
    tiling, chosen = problem.start.tiling, list[ShardColor]()
    every = [*problem.moves, *followers(problem)]
    while len(chosen) < MOST_TILES:
        found = [_fitted(problem, tiling, move, target) for move in every]
        gain, move = max(found, key=lambda each: each[0], default=(0, None))
        if move is None or gain < EACH:
            break
        tiling = move.take(problem.propagator, tiling).tiling
        chosen.append(move)
    return tuple(chosen), tiling


def _fitted(
    problem: Problem, tiling: Tiling, move: ShardColor, target: Tiling
) -> tuple[int, ShardColor]:
    """Returns the gain of a tile action, right minus wrong places, and the action.

    Parts of it that do not gain are left out.
    """
    propagation = move.whole(problem.propagator, tiling)
    gains = [
        sum(_right(propagation.tiling, target, node, move.axis) for node in part)
        for part in problem.parts(propagation, move)
    ]
    without = tuple(number for number, gain in enumerate(gains) if gain <= 0)
    return sum(max(gain, 0) for gain in gains), msgspec.structs.replace(move, without=without)


def _right(tiling: Tiling, target: Tiling, node: Node, axis: int) -> int:
    """Returns 1 if a plan has an axis in the same place, else -1."""
    kind, index, place = node
    here, there = ((t.ops if kind == "op" else t.values)[index][place] for t in (tiling, target))
    return 1 if _prefix(here, there) == here else -1


def class_by_class(problem: Problem, after: Tiling, before: Tiling | None = None) -> DecisionGroup:
    """Returns the move to a tiling, by default from the start, as far as classes can follow.

    A class that has an axis at the start keeps it.
    """
    start = problem.start.tiling
    return DecisionGroup(tuple(changed(problem, before or start, after)))


def changed(problem: Problem, before: Tiling, after: Tiling) -> Iterator[ShardClass]:
    """Yields the local actions that lead from one tiling to another, class by class.

    A class that has an axis at the start of the problem keeps it.
    """
    for node in problem.differing(before, after):
        yield from _moved(problem, node, _layout(before, node), _layout(after, node))


def _without_needless(problem: Problem, state: SearchState, tiling: Tiling) -> SearchState:
    """Returns the state with as many class layouts as possible from a tiling, at the same cost.

    Half of the classes that differ are tried at once, then quarters, and so on.
    """
    nodes = problem.differing(state.tiling, tiling)
    size, left = len(nodes), state
    while size and nodes:
        size = math.ceil(size / 2)
        kept: list[ClassNode] = []
        for first in range(0, len(nodes), size):
            some = nodes[first : first + size]
            back = [
                action
                for node in some
                for action in _moved(
                    problem, node, _layout(left.tiling, node), _layout(tiling, node)
                )
            ]
            after = problem.step(left, DecisionGroup(tuple(back))) if back else left
            if after is not None and _as_good(problem, after, state):
                left = after
            else:
                kept += some
        nodes = kept
        if size == 1:
            break
    return left


def _as_good(problem: Problem, state: SearchState, other: SearchState) -> bool:
    """Returns whether a state costs as little as another, and has no avoided collective.

    Noise is tolerated, and `MEMORY` times the peak memory if that fits.
    """
    if problem.avoided(state.lowering):
        return False
    room = problem.cost_model.capacity
    if other.cost.peak > room and state.cost.peak > other.cost.peak * (1 + NOISE):
        return False
    if state.cost.peak > min(room, other.cost.peak * MEMORY) >= other.cost.peak:
        return False
    return problem.time(state) <= problem.time(other) * (1 + NOISE)


def _layout(tiling: Tiling, node: ClassNode) -> Layout:
    kind, index = node
    place = index if kind == "op" else tiling.count + index
    return LAYOUTS.all[int(tiling.row[place])]


def _moved(problem: Problem, node: ClassNode, old: Layout, new: Layout) -> Iterator[ShardClass]:
    """Yields the actions that change the layout of a class."""
    for axis, place in _steps(old, new, _layout(problem.start.tiling, node)):
        yield problem.class_move(node, axis, place)


@functools.cache
def _steps(old: Layout, new: Layout, given: Layout) -> tuple[tuple[int, int], ...]:
    """Returns axes with their new places: removals first, then additions; given axes stay."""
    kept = {axis for a, b in zip(old, new, strict=True) for axis in _prefix(a, b)}
    kept |= {axis for axes in given for axis in axes}
    places = {axis: place for place, axes in enumerate(new) for axis in axes}
    off = [  # what goes to another place leaves the one before by itself
        (axis, NOWHERE)
        for place, axes in enumerate(old)
        for axis in axes
        if axis not in kept and places.get(axis, place) == place
    ]
    return (*off, *((axis, place) for axis, place in places.items() if axis not in kept))


def _prefix(a: Axes, b: Axes) -> Axes:
    """Returns the common prefix of both."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return tuple(axis for axis, _ in pairs)
