"""Inner loops in C do what the same in Python does, to the last bit."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from partita import native, sparse
from partita.search.bounds import messages
from partita.search.bounds.messages import Edge, Energy, Messages
from partita.search.iterated import search
from partita.sparse import Rows
from searching import mlp

compiled = pytest.mark.skipif(native.add_rows is None, reason="installed without a C compiler")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_where_there_is_a_compiler_they_are_built():
    assert native.add_rows is not None
    assert native.pass_messages is not None


def an_energy(nodes, edges, seed):
    """Nodes of 1 to 6 choices, and edges between any two of them, some by columns in memory."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, nodes)
    ends = [sorted(rng.choice(nodes, 2, replace=False).tolist()) for _ in range(edges)]
    costs = [rng.random((sizes[second], sizes[first])).T for first, second in ends]
    return Energy.joined(
        [rng.random(size) for size in sizes],
        [Edge(*pair, cost) for pair, cost in zip(ends, costs, strict=True)],
    )


@compiled
@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (2, 1), (6, 15), (60, 120)])
def test_messages(monkeypatch, nodes, edges):
    energy = an_energy(nodes, edges, seed=nodes)
    ours, theirs = Messages(energy), Messages(energy)
    for _ in range(5):
        found = ours.run(energy)
        with monkeypatch.context() as without:
            without.setattr(messages, "pass_messages", None)
            assert theirs.run(energy) == found
        np.testing.assert_array_equal(ours.forward, theirs.forward)
        np.testing.assert_array_equal(ours.backward, theirs.backward)


@compiled
@pytest.mark.parametrize("kind", [np.float64, np.uint64])
def test_rows_that_are_added(monkeypatch, kind):
    rng = np.random.default_rng(0)
    rows = Rows([0, 0, 2], np.array([3, 3]), np.array([1, 2], dtype=kind))
    for count in (0, 1, 5, 40):
        columns = rng.integers(0, 10, count)
        assert rows.append(columns, rng.integers(0, 2**50, count).astype(kind)) == len(rows) - 1
    chosen, factors = np.array([1, 5, 0, 5, 3]), np.array([1, 2, 3, 4, 5], dtype=kind)
    ours, theirs = np.ones((2, 10), dtype=kind)
    rows.add(ours, chosen, factors)
    monkeypatch.setattr(sparse, "add_rows", None)
    rows.add(theirs, chosen, factors)
    np.testing.assert_array_equal(ours, theirs)
    assert ours[3] != 1


@compiled
def test_rows_whose_numbers_have_changed(monkeypatch):
    rng = np.random.default_rng(0)
    columns, ones = rng.integers(0, 10, 30), np.ones(30, dtype=np.uint64)
    rows = Rows([0, 4, 4, 20, 30], columns, ones)
    figures = rng.integers(0, 2**64, 7, dtype=np.uint64)
    old, new = np.array([3, 1, 6, 0], dtype=np.int32), np.array([3, 2, 5, 6], dtype=np.int32)
    ours, theirs = np.zeros((2, 10), dtype=np.uint64)
    rows.add_differences(ours, figures, old, new)
    monkeypatch.setattr(sparse, "add_rows", None)
    monkeypatch.setattr(sparse, "add_differences", None)
    rows.add_differences(theirs, figures, old, new)
    np.testing.assert_array_equal(ours, theirs)
    assert set(np.flatnonzero(ours)) == set(columns[4:])
    with pytest.raises(IndexError, match="row 0"):
        native.add_differences(ours, np.array([0, 4]), columns, figures, old + 7, new)


@compiled
def test_rows_that_are_reached(monkeypatch):
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 40, 60)
    rows = Rows([0, *sorted(rng.integers(0, 60, 39)), 60], columns, np.ones(60))
    for _ in range(10):
        can, seeds = rng.random(40) < 0.8, rng.integers(0, 40, 3)
        ours = rows.reached(can, seeds)
        with monkeypatch.context() as without:
            without.setattr(sparse, "reach", None)
            np.testing.assert_array_equal(ours, rows.reached(can, seeds))
        assert 0 < ours.sum() <= can.sum()
    with pytest.raises(IndexError, match="40"):
        rows.reached(can, np.array([40]))


@compiled
def test_what_they_cannot_take_is_an_error_and_nothing_else():
    starts, columns, values = np.array([0, 1]), np.array([0]), np.ones(1)
    one, row = np.ones(1), np.zeros(1, dtype=np.int64)
    for wrong in (7, 1, -1):
        with pytest.raises(IndexError, match=f"{wrong} is out of range"):
            native.add_rows(np.zeros(1), starts, columns, values, row + wrong, one)
    with pytest.raises(IndexError, match="5"):
        native.add_rows(np.zeros(1), starts, columns + 5, values, row, one)
    with pytest.raises(TypeError, match="float64"):
        native.add_rows(np.zeros(1), starts, columns, values.astype(np.float32), row, one)
    with pytest.raises(ValueError, match="at least 1 items, got 0"):
        native.add_rows(np.zeros(1), starts, columns, values, row, one[:0])


def test_a_search_finds_the_same_plan_without_them(monkeypatch):
    def found():
        problem = mlp()
        best = search(problem, 3000, 0, lambda done, best: None)
        return best.moves, best.cost.time, best.cost.peak, problem.evaluations, problem.least

    ours = found()
    monkeypatch.setattr(sparse, "add_rows", None)
    monkeypatch.setattr(sparse, "add_differences", None)
    monkeypatch.setattr(sparse, "reach", None)
    monkeypatch.setattr(messages, "pass_messages", None)
    assert found() == ours
    assert ours[-1] > 0  # the lower bound was looked at
