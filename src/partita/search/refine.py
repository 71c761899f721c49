"""Refinement: makes small changes to a found plan as long as one of them improves it.

First to its moves (`climb`), along one axis or several at once:

- drop one, add one, exchange one for another, or give it another axis;
- move it to the front or to the back;
- leave out a part of what it takes, so that, say, small parameters stay replicated while large ones
  are sharded;
- exchange operands instead of reducing results (experts by all_to_all).

Then to single classes of operations and values (`polish`): where something is communicated, an axis
of a class moves to another place, or is removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator

import msgspec

from partita.decisions import EVERY_COLOR, NOWHERE, ShardClass, ShardColor
from partita.search.neighbourhood import Moves, multi_axis_changes
from partita.search.problem import ClassNode, Problem, SearchState
from partita.search.protocol import SearchProgress, register
from partita.search.small_values import replicate_small_values
from partita.search.starts import followers
from partita.tiling import uses_axis


def _silent(done: int, best: SearchState) -> None:
    """Ignores progress."""


@register("refine")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Refines the start of the problem; nothing is random."""
    return refine(problem, problem.start, budget, progress)


def refine(
    problem: Problem, state: SearchState, budget: int, progress: SearchProgress = _silent
) -> SearchState:
    """Returns the best state that single changes lead to, evaluating at most `budget` new states.

    States evaluated on the way to others count, too.
    """
    limit = problem.evaluations + budget
    climbed = climb(problem, state, limit, progress)
    polished = polish(problem, climbed, limit, progress)
    return min(polished, problem.best, key=problem.rank)


def climb(
    problem: Problem, state: SearchState, limit: int, progress: SearchProgress = _silent
) -> SearchState:
    """Returns the state after changes of its moves, each the first found that improves it.

    Args:
      problem: the problem to search.
      state: the state to start from.
      limit: the most states that may have been evaluated in all.
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
    """Returns the state after changes of single classes, in rounds, best changes first.

    Before them, small values are replicated along an axis together, if that is better.

    Args:
      problem: the problem to search.
      state: the state to start from.
      limit: the most states that may have been evaluated in all.
      progress: called now and then.
      like: a polished state. If it is given, only classes whose layout differs from there, and
        classes near them, are changed first ("don't-look bits").
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
        within = {problem.class_of(action) for _, action in gains}
        for _, action in sorted(gains):
            if problem.evaluations >= limit:
                break
            after = problem.step(best, action)
            if after is not None and problem.better(after, best):
                best = after
                within |= _near(problem, problem.class_of(action))
    return best


def local_actions(
    problem: Problem, state: SearchState, within: Container[ClassNode] | None = None
) -> Iterator[ShardClass]:
    """Yields all local actions on communicated values, and on operations that make or use them.

    An axis that a class had before the search stays where it is.

    Args:
      problem: the problem to search.
      state: a plan.
      within: the classes to consider; all by default.
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
            for axis in problem.axes:
                if not uses_axis(given, axis):
                    for place in range(NOWHERE, len(given)):
                        yield problem.class_move((kind, index), axis, place)


def _around_changes(problem: Problem, a: SearchState, b: SearchState) -> set[ClassNode]:
    """Returns the classes whose layouts differ between two states, and those near them."""
    nodes = problem.differing(a.tiling, b.tiling)
    return set().union(*(_near(problem, node) for node in nodes))


def _near(problem: Problem, node: ClassNode) -> set[ClassNode]:
    """Returns the classes around one, up to two steps away."""
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
    """Yields all single changes of moves."""
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
    """Yields moves with one along another axis, or with two axes exchanged in all of them."""
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
