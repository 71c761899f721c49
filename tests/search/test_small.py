"""Small values that stay replicated, all at once."""

from __future__ import annotations

import jax.numpy as jnp

from partita.decisions import DecisionGroup
from partita.search import Problem
from partita.search.small_values import replicate_small_values
from partita.tiling import uses_axis
from searching import mlp, problem


def many(w, x, *small):
    """A product, and biases that are doubled, which nothing needs to be split for."""
    return jnp.tanh(x @ w), [2 * each for each in small]


def with_small_ones(mesh="a=4"):
    """The problem, and the state in which all is split along its axes."""
    found = problem(many, ((512, 512), (4096, 512), *[(64,)] * 40), mesh)
    moves = tuple(found.moves)
    return found, found.replay(moves)


def test_small_values_leave_an_axis_together():
    of, state = with_small_ones()
    after = replicate_small_values(of, state, 10**6)
    assert not of.better(state, after)
    if after is not state:
        assert isinstance(after.moves[-1], DecisionGroup)
    for value in of.graph.values:
        if value.value.type.bytes > 2**22:
            assert after.tiling.values[value.index] == state.tiling.values[value.index]


def test_what_is_large_keeps_its_axis():
    of = mlp("even")
    state = of.replay(of.moves[:1])
    after = replicate_small_values(of, state, 10**6)
    large = [v for v in of.graph.values if v.value.type.bytes > 2**22]
    assert large
    assert [uses_axis(after.tiling.values[v.index], 0) for v in large] == [
        uses_axis(state.tiling.values[v.index], 0) for v in large
    ]


def test_what_small_values_had_before_the_search_they_keep(monkeypatch):
    of, _ = with_small_ones("a=4,b=4")
    given = of.replay([move for move in of.moves if move.axis == 0]).tiling
    of = Problem(of.graph.analysis, of.graph, given, of.mesh, of.cost_model, of.axes)
    state, tried = of.replay([move for move in of.moves if move.axis == 1]), []
    monkeypatch.setattr(of, "step", lambda _, move: tried.append(move))
    replicate_small_values(of, state, 10**6)
    assert {action.axis for move in tried for action in move.decisions} == {1}


def test_no_more_is_evaluated_than_may_be():
    of = mlp("even")
    state = of.replay(of.moves[:1])
    assert replicate_small_values(of, state, of.evaluations) is state
