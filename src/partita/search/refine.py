"""Refinement: small changes to a found plan, taken as long as one of them makes it better.

Drop a move, add one, exchange one for another, move one to the front or to the back, leave out a
part of one (so that, say, small parameters stay replicated while large ones are sharded), or have
operands exchanged instead of unreduced results summed (experts by all_to_all).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchProgress, register
from partita.tiling import TileAction


@register("refine")
def search(problem: Problem, budget: int, seed: int, progress: SearchProgress) -> SearchState:
    """Refinement alone, of the plan as it is; nothing is random."""
    return refine(problem, problem.start, budget, progress)


def refine(
    problem: Problem,
    state: SearchState,
    budget: int,
    progress: SearchProgress = lambda done, best: None,
) -> SearchState:
    """The best state that single changes lead to, evaluating at most `budget` new states.

    One that was evaluated on the way to others counts, too.
    """
    limit = problem.evaluations + budget
    best, improved = state, True
    while improved and problem.evaluations < limit:
        improved = False
        for moves in changes(problem, best):
            candidate = problem.replay(moves, limit)
            progress(problem.evaluations, best)
            if problem.better(candidate, best):
                best, improved = candidate, True
                break
            if problem.evaluations >= limit:
                break
        if problem.better(problem.best, best):
            best, improved = problem.best, True
    return best


def changes(problem: Problem, state: SearchState) -> Iterator[tuple[TileAction, ...]]:
    """All single changes of the moves that led to a state."""
    moves = state.moves
    for i in range(len(moves)):
        yield moves[:i] + moves[i + 1 :]
    for move in problem.moves:
        if move not in moves:
            yield (*moves, move)
    for i in range(1, len(moves)):
        yield (moves[i], *moves[:i], *moves[i + 1 :])
    for i in range(len(moves) - 2):  # of two moves, the first to the back is the last to the front
        yield (*moves[:i], *moves[i + 1 :], moves[i])
    yield from _without_parts(problem, moves)
    for i, move in enumerate(moves):
        changed = dataclasses.replace(move, sums=not move.sums, without=())
        yield (*moves[:i], changed, *moves[i + 1 :])
    for i in range(len(moves)):
        for move in problem.moves:
            if move not in moves:
                yield (*moves[:i], move, *moves[i + 1 :])


def _without_parts(
    problem: Problem, moves: tuple[TileAction, ...]
) -> Iterator[tuple[TileAction, ...]]:
    state = problem.start
    for i, move in enumerate(moves):
        propagation = problem.propagator.tile_color(
            state.tiling, move.color, move.axis, dict(move.roles)
        )
        parts = len(problem.parts(propagation, move))
        if parts > 1:
            for number in range(parts):
                if number in move.without:
                    without = tuple(n for n in move.without if n != number)
                else:
                    without = tuple(sorted((*move.without, number)))
                if len(without) < parts:
                    changed = dataclasses.replace(move, without=without)
                    yield (*moves[:i], changed, *moves[i + 1 :])
        state = problem.step(state, move) or state
