"""ZobristHashes are told apart by what is around a thing, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from partita.spmd.zobrist import View, ZobristHashes, ZobristKeys

AROUND = [[0, 1], [1], [2], []]


def situations(numbers):
    return ZobristHashes(AROUND, 3, seed=0).of(ZobristKeys(1).of(np.array(numbers), 10)).tolist()


def test_things_are_told_apart():
    assert len(set(situations([0, 0, 0]))) == len(AROUND)


def test_only_what_is_around_counts():
    before, after = situations([0, 1, 2]), situations([0, 3, 2])
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True, True]


def test_the_same_again_is_the_same_situation():
    assert situations([4, 5, 6]) == situations([4, 5, 6])


@pytest.mark.parametrize("changed", [[], [0], [1], [2], [2, 0], [0, 1, 2]])
def test_after_some_operations_have_changed_it_is_as_if_looked_at_anew(changed):
    numbers, marks = np.array([0, 1, 2], dtype=np.int32), ZobristKeys(1)
    now = numbers.copy()
    now[changed] += 5
    of = ZobristHashes(AROUND, 3, seed=0)
    found = of.after(of.of(marks.of(numbers, 10)), marks.first(10), numbers, now)
    assert found.tolist() == situations(now)


def test_marks_do_not_depend_on_how_many_there_are():
    few, many = ZobristKeys(3), ZobristKeys(3)
    assert many.of(np.array([7, 300]), 10_000)[0] == few.of(np.array([7]), 8)[0]


def test_nothing_is_around_where_there_are_no_operations():
    assert len(ZobristHashes([[], []], 0, seed=0).of(np.zeros(0, dtype=np.uint64))) == 2


def test_a_view_shows_things_by_number():
    view = View("abc", np.array([2, 0, 0]))
    assert (list(view), view[0], view[1:], len(view)) == (["c", "a", "a"], "c", ["a", "a"], 3)
