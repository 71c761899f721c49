"""The tables of a relaxed problem, weighed all at once, are what each of them is by itself."""

from __future__ import annotations

import numpy as np
import pytest

from partita.search.bounds.tables import Tables
from partita.search.bounds.uses import Moves, Uses

SIZES = [3, 2, 4, 3, 2, 5]
"""Choices of nodes; the first three are operations, the others values."""
PLACES = [1, 3, 5, 0, 2, 4]
PAIRS = [(0, 3), (1, 4), (2, 5), (1, 3)]


def some_moves(rng, first, second):
    return Moves(first, second, *(rng.random((SIZES[first], SIZES[second])) for _ in range(3)))


def some_uses(rng, value, ops):
    """Each use has all needs among its choices, the first of them at least once."""
    needs = 3
    rows = [rng.integers(0, needs, SIZES[op]) for op in ops]
    may = np.array([np.isin(np.arange(needs), each) for each in rows], dtype=float)
    weights = may / np.maximum(may.sum(axis=0), 1)
    seconds, hidden, compute = (rng.random((needs, SIZES[value])) for _ in range(3))
    shares = rng.random(len(ops)).tolist()
    weights = np.repeat(weights[:, :, None], SIZES[value], axis=2)
    return Uses(value, ops, rows, seconds, hidden, shares, compute, weights)


def shared(uses, choices, step):
    """Those that need alike have a step more of what they need."""
    layout = choices[uses.value]
    needs = [int(rows[choices[op]]) for op, rows in zip(uses.ops, uses.rows, strict=True)]
    for need in set(needs):
        alike = np.array([float(each == need) for each in needs])
        now = uses.weights[:, need, layout]
        uses.weights[:, need, layout] = (1 - step) * now + step * alike / alike.sum()


class OneByOne:
    """The same, table by table."""

    def __init__(self, moves, uses):
        self.moves, self.uses = moves, uses

    def all(self):
        single, several = ([u for u in self.uses if (len(u.ops) > 1) == m] for m in (False, True))
        moved = [move for uses in (*single, *several) for _, move in uses.moves()]
        return [*self.moves, *moved]

    def costs(self, compute, beside):
        found = []
        for move in self.all():
            cost = move.seconds - (1 - beside) * move.hidden + compute * move.compute
            turned = PLACES[move.first] > PLACES[move.second]
            found.append((cost.T if turned else cost).ravel())
        return np.concatenate(found)

    def sums(self, choices):
        at = [(move, (choices[move.first], choices[move.second])) for move in self.all()]
        return sum(m.compute[a] for m, a in at), sum(m.hidden[a] for m, a in at)


def both(seed):
    rng = np.random.default_rng(seed)
    moves = [some_moves(rng, *pair) for pair in PAIRS]
    uses = [some_uses(rng, 3, [0, 1, 2]), some_uses(rng, 4, [1]), some_uses(rng, 5, [0, 2])]
    return rng, Tables(PLACES, moves, uses), OneByOne(moves, uses)


@pytest.mark.parametrize("seed", range(5))
def test_they_cost_what_each_does_however_uses_share(seed):
    rng, tables, one_by_one = both(seed)
    for _ in range(4):
        for weights in ((1.0, 0.0), (0.6, 0.2), (0.6, 0.4)):
            np.testing.assert_array_equal(tables.costs(*weights), one_by_one.costs(*weights))
        choices = np.array([rng.integers(0, size) for size in SIZES])
        assert tables.sums(choices) == pytest.approx(one_by_one.sums(choices))
        tables.share(choices, 0.3)
        for uses in one_by_one.uses:
            if len(uses.ops) > 1:
                shared(uses, choices, 0.3)


def test_the_node_that_stands_first_comes_first():
    _, tables, one_by_one = both(0)
    assert all(first < second for first, second in tables.ends)
    pairs = [{PLACES[move.first], PLACES[move.second]} for move in one_by_one.all()]
    assert [set(ends) for ends in tables.ends] == pairs


def test_there_may_be_none():
    tables = Tables([], [], [])
    assert tables.costs(0.5, 0.5).size == 0
    assert tables.sums(np.zeros(0, dtype=np.int64)) == (0, 0)
    tables.share(np.zeros(0, dtype=np.int64), 0.5)
