"""Refinement: small changes to a found plan, taken as long as one of them makes it better.

First to its moves (`climb`): drop one, add one, exchange one for another, give it another axis,
move it to the front or to the back, leave out a part of what it takes (so that, say, small
parameters stay replicated while large ones are sharded), or have operands exchanged instead of
unreduced results summed (experts by all_to_all); or the like along several axes at once. Then to
single classes of operations and values (`polish`): where something is communicated, an axis of a
class goes elsewhere, or off.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np

from partita.decisions import EVERY_COLOR, NOWHERE, ShardClass, ShardColor
from partita.search.neighbourhood import Moves, multi_axis_changes
from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register
from partita.search.small_values import replicate_small_values
from partita.search.starts import followers
from partita.tiling import uses_axis


def _silent(done: int, best: SearchState) -> None:
    """Told of progress, says nothing."""


@register("refine")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Refinement alone, of the plan as it is; nothing is random."""
    return refine(problem, problem.start, budget, progress)


def refine(
    problem: Problem, state: SearchState, budget: int, progress: SearchProgress = _silent
) -> SearchState:
    """The best state that single changes lead to, evaluating at most `budget` new states.

    One that was evaluated on the way to others counts, too.
    """
    limit = problem.evaluations + budget
    climbed = climb(problem, state, limit, progress)
    polished = polish(problem, climbed, limit, progress)
    return min(polished, problem.best, key=problem.rank)


def climb(
    problem: Problem, state: SearchState, limit: int, progress: SearchProgress = _silent
) -> SearchState:
    """The state after changes of its moves, each the first found that is better than before.

    Args:
      problem: what is searched.
      state: where to start.
      limit: how many states may have been evaluated in all.
      progress: called now and then.
    """
    best, quiet = state, 0
    kinds = itertools.cycle(CHANGES)
    kind = next(kinds)
    while quiet < len(CHANGES) and problem.evaluations < limit:
        better = _first_better(problem, best, kind(problem, best.moves), limit, progress)
        if better is None:
            kind, quiet = next(kinds), quiet + 1
        else:
            best, quiet = better, 0
    return best


def _first_better(
    problem: Problem,
    best: SearchState,
    changed: Iterable[Moves],
    limit: int,
    progress: SearchProgress,
) -> SearchState | None:
    for moves in changed:
        if problem.evaluations >= limit:
            return None
        candidate = problem.replay(moves, limit, best)
        progress(problem.evaluations, problem.best)
        if problem.better(candidate, best):
            return candidate
    return None


def polish(
    problem: Problem,
    state: SearchState,
    limit: int,
    progress: SearchProgress = _silent,
    like: SearchState | None = None,
) -> SearchState:
    """The state after changes of single classes, in rounds, each change the best that is left.

    Before them, small values leave an axis together, if that is better.

    Args:
      problem: what is searched.
      state: where to start.
      limit: how many states may have been evaluated in all.
      progress: called now and then.
      like: a polished state. If it is given, only classes that are laid out otherwise than there,
        or are near one that is, are looked at first ("don't-look bits").
    """
    best = replicate_small_values(problem, state, limit)
    within = None if like is None else _around_changes(problem, like, best)
    while problem.everything and problem.evaluations < limit:
        gains = []
        for action in local_actions(problem, best, within):
            if problem.evaluations >= limit:
                break
            after = problem.step(best, action)
            progress(problem.evaluations, problem.best)
            if after is not None and problem.better(after, best):
                gains.append((problem.rank(after), action))
        if not gains:
            break
        within = {_node(problem, action) for _, action in gains}
        for _, action in sorted(gains):
            if problem.evaluations >= limit:
                break
            after = problem.step(best, action)
            if after is not None and problem.better(after, best):
                best = after
                within |= _near(problem, _node(problem, action))
    return best


ClassNode = tuple[Literal["op", "value"], int]
"""A class of operations or of values."""


def local_actions(
    problem: Problem, state: SearchState, within: Container[ClassNode] | None = None
) -> Iterator[ShardClass]:
    """All local actions on classes of which something is communicated, or that it is for.

    What had an axis before the search keeps it where it is.

    Args:
      problem: what is searched.
      state: a plan.
      within: the classes that count; all by default.
    """
    graph = problem.graph
    moved = dict.fromkeys(v for v, step, _ in state.lowering.steps() if step.is_collective)
    ops: set[int] = set()
    for value in map(graph.values.__getitem__, moved):
        ops.update(use.op for use in value.uses)
        if value.producer is not None:
            ops.add(value.producer[0])
    nodes: list[ClassNode] = [*(("op", i) for i in sorted(ops)), *(("value", i) for i in moved)]
    for kind, index in nodes:
        if within is None or (kind, index) in within:
            given = problem.propagator.layout(problem.start.tiling, (kind, index, 0))
            member = (graph.ops if kind == "op" else graph.values)[index].members[0]
            for axis in problem.axes:
                if not uses_axis(given, axis):
                    for place in range(NOWHERE, len(given)):
                        yield ShardClass(kind, member, axis, place)


def _around_changes(problem: Problem, a: SearchState, b: SearchState) -> set[ClassNode]:
    """The classes that two states lay out differently, and those near them."""
    count = a.tiling.count
    places = np.flatnonzero(a.tiling.row != b.tiling.row).tolist()
    nodes: list[ClassNode] = [
        ("op", place) if place < count else ("value", place - count) for place in places
    ]
    return set().union(*(_near(problem, node) for node in nodes))


def _node(problem: Problem, action: ShardClass) -> ClassNode:
    graph = problem.graph
    numbers = graph.op_class if action.kind == "op" else graph.value_class
    return action.kind, numbers[action.member]


def _near(problem: Problem, node: ClassNode) -> set[ClassNode]:
    """The classes around one, up to two steps away."""
    found = {node}
    for _ in range(2):
        found.update(*(_beside(problem, each) for each in found))
    return found


def _beside(problem: Problem, node: ClassNode) -> set[ClassNode]:
    kind, index = node
    if kind == "op":
        op = problem.graph.ops[index]
        return {("value", v) for classes in (*op.operands, *op.results) for v in classes}
    value = problem.graph.values[index]
    made: set[ClassNode] = set() if value.producer is None else {("op", value.producer[0])}
    return made | {("op", use.op) for use in value.uses}


def changes(problem: Problem, moves: Moves) -> Iterator[Moves]:
    """All single changes of moves."""
    return itertools.chain.from_iterable(kind(problem, moves) for kind in CHANGES)


def _dropped(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for i in range(len(moves)):
        yield moves[:i] + moves[i + 1 :]


def _added(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for move in _others(problem, moves):
        yield (*moves, move)


def _put_first(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for move in _others(problem, moves):
        yield (move, *moves)


def _reordered(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for i in range(1, len(moves)):
        yield (moves[i], *moves[:i], *moves[i + 1 :])
    for i in range(len(moves) - 2):  # of two moves, the first to the back is the last to the front
        yield (*moves[:i], *moves[i + 1 :], moves[i])


def _along_others(problem: Problem, moves: Moves) -> Iterator[Moves]:
    """One move along another axis, or all moves of two axes exchanged."""
    for i, move in enumerate(moves):
        if isinstance(move, ShardColor):
            for axis in problem.axes:
                if axis != move.axis:
                    along = msgspec.structs.replace(move, axis=axis, without=())
                    yield (*moves[:i], along, *moves[i + 1 :])
    for a, b in itertools.combinations(problem.axes, 2):
        exchanged = {a: b, b: a}
        yield tuple(
            msgspec.structs.replace(move, axis=exchanged.get(move.axis, move.axis), without=())
            if isinstance(move, ShardColor)
            else move
            for move in moves
        )


def _without_parts(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for i, (move, tiling) in enumerate(zip(moves, problem.tilings(moves), strict=True)):
        if not isinstance(move, ShardColor):
            continue
        propagation = move.whole(problem.propagator, tiling)
        parts = len(problem.parts(propagation, move))
        for number in range(parts if parts > 1 else 0):
            if number in move.without:
                without = tuple(n for n in move.without if n != number)
            else:
                without = tuple(sorted((*move.without, number)))
            if len(without) < parts:
                changed = msgspec.structs.replace(move, without=without)
                yield (*moves[:i], changed, *moves[i + 1 :])


def _other_sums(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for i, move in enumerate(moves):
        if isinstance(move, ShardColor) and move.color != EVERY_COLOR:
            otherwise = msgspec.structs.replace(move, sums=not move.sums, without=())
            yield (*moves[:i], otherwise, *moves[i + 1 :])


def _exchanged(problem: Problem, moves: Moves) -> Iterator[Moves]:
    for i in range(len(moves)):
        for move in _others(problem, moves):
            yield (*moves[:i], move, *moves[i + 1 :])


def _others(problem: Problem, moves: Moves) -> Iterator[ShardColor]:
    return (move for move in (*problem.moves, *followers(problem)) if move not in moves)


CHANGES: tuple[Callable[[Problem, Moves], Iterator[Moves]], ...] = (
    _dropped,
    _added,
    _reordered,
    _along_others,
    _other_sums,
    _put_first,
    _without_parts,
    _exchanged,
    multi_axis_changes,
)
"""The kinds of changes, in the order in which they are tried."""
