"""Changes along several axes at once, and what single classes of one plan teach about others."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from partita.decisions import ShardClass, ShardColor
from partita.search.best_first import best_first, plain
from partita.search.history import HistoryHeuristic
from partita.search.neighbourhood import multi_axis_changes
from partita.search.refine import CHANGES, changes, polish
from partita.search.small_values import replicate_small_values
from searching import SIZES, mlp, problem


def looked_up(table, wanted, other):
    """Rows of a table: it may be split by rows, or by columns, which the product sums over."""
    return jnp.tanh(table[wanted.astype(jnp.int32)]) @ other


def lookup(mesh="data=2,model=2"):
    """A problem of which single classes are worth changing."""
    return problem(looked_up, ((4096, 2048), (1024,), (2048, 512)), mesh)


def along(color, *axes):
    return tuple(ShardColor(color, axis) for axis in axes)


def colors(problem):
    return list(dict.fromkeys(move.color for move in problem.moves if not move.roles))


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_a_color_is_dropped_or_gives_its_place_along_both_axes(axes):
    p = mlp()
    first, second, third = colors(p)[:3]
    moves = (*along(first, *axes), *along(second, *axes))
    found = set(multi_axis_changes(p, moves))
    assert along(first, *axes) in found
    assert (*along(second, *axes), *along(first, *axes)) in found
    assert (*along(third, *axes), *along(second, *axes)) in found
    assert (*moves, *along(third, *axes)) in found
    assert not any(along(third, *reversed(axes)) == each[-2:] for each in found)


def test_of_three_axes_two_are_enough():
    p = mlp(mesh="x=2,y=2,z=2")
    first, second = colors(p)[:2]
    found = set(multi_axis_changes(p, along(first, 0, 1, 2)))
    assert {(), along(first, 1), along(first, 2)} <= found
    assert (*along(second, 0, 1), *along(first, 2)) in found


def test_along_one_axis_there_is_nothing_more_to_do():
    p = mlp(mesh="data=4")
    assert not list(multi_axis_changes(p, p.moves[:1]))


def test_a_part_is_left_out_of_all_moves_of_a_color():
    """The second color, which comes to what the first one leaves, falls into parts."""
    p = mlp()
    parted = [
        (moves, without)
        for first in colors(p)
        for second in colors(p)
        for moves in [(*along(first, 0, 1), *along(second, 0, 1))]
        for each in multi_axis_changes(p, moves)
        for without in [[move.without for move in each if move.color == second]]
        if any(without)
    ]
    assert parted
    assert all(len(set(without)) == 1 for _, without in parted)


def test_it_is_among_the_changes_of_a_search():
    assert multi_axis_changes in CHANGES


@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_polished_already_is_not_looked_at_again(sizes):
    p = mlp(sizes)
    for move in p.moves[:4]:
        polished = polish(p, p.replay((move,)), 10_000)
        replicate_small_values(p, polished, 10_000)  # which is tried first, always
        before = p.evaluations
        assert polish(p, polished, 10_000, like=polished).key == polished.key
        assert p.evaluations == before


@pytest.mark.parametrize("sizes", SIZES)
def test_near_a_polished_plan_less_is_looked_at(sizes):
    """What comes of it is no worse than before, and a part of all that could be tried."""
    p, all_of_it = mlp(sizes), mlp(sizes)
    polished = polish(p, p.replay(p.moves[:1]), 10_000)
    polish(all_of_it, all_of_it.replay(p.moves[:1]), 10_000)
    for move in p.moves[1:]:
        moves = (*polished.moves, move)
        start, before = p.replay(moves), p.evaluations
        found = polish(p, start, 10_000, like=polished)
        other = all_of_it.replay(moves)
        again = all_of_it.evaluations
        polish(all_of_it, other, 10_000)
        assert not p.better(start, found)
        assert p.evaluations - before <= all_of_it.evaluations - again


def test_what_helped_one_plan_is_tried_in_another():
    p = lookup()
    polished = next(
        found
        for found in (polish(p, p.replay(moves), 10_000) for moves in starts(p))
        if any(isinstance(move, ShardClass) for move in found.moves)
    )
    learned = HistoryHeuristic(p, 10_000)
    whole = p.replay(plain(polished.moves))
    assert learned.adapted(whole) is whole
    learned.note(polished)
    assert p.better(learned.adapted(whole), whole)
    for moves in starts(p):
        assert not p.better(p.replay(moves), learned.adapted(p.replay(moves)))


def starts(problem):
    return [(a, b) for a in problem.moves for b in problem.moves]


def test_a_plan_goes_where_what_becomes_of_it_belongs():
    """Of two plans the worse one comes first, as more becomes of it."""
    p = mlp()
    best = min(best_first(p, [p.start], 10_000, lambda done, best: None), key=p.rank)
    p = mlp()
    best = p.replay(best.moves)
    good, poor = sorted((p.replay((move,)) for move in p.moves[:2]), key=p.rank)
    limit = p.evaluations + 1

    def ends(adapted):
        return best_first(p, [good, poor], limit, lambda done, best: None, adapted)

    found = ends(lambda state: best if state.key == poor.key else state)
    assert [state.key for state in found[:2]] == [good.key, best.key]
    assert found[2].moves in set(changes(p, poor.moves))
