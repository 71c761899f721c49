"""Best-first search finds what no single change leads to; a search fits wherever a plan does."""

from __future__ import annotations

import pytest

from partita.search import ALGORITHMS, exhaust
from partita.search.best_first import best_first
from partita.search.refine import climb
from searching import SIZES, mlp, run

STUCK = [
    ("even", "data=2,model=2", 1.0),
    ("even", "data=2,model=2", 0.7),
    ("even", "data=4,model=2", 0.3),
]
"""Sizes, meshes and shares of memory at which no single change of a local optimum is better, and
two of them are."""


def seen(problem, starts, limit=5000):
    """All plans of a best-first search."""
    return best_first(problem, starts, limit, lambda done, best: None)


@pytest.mark.parametrize(("sizes", "mesh", "share"), STUCK)
def test_it_leads_from_a_local_optimum_to_the_best_of_all_plans(sizes, mesh, share):
    best = exhaust(mlp(sizes, mesh, share), 5000).best
    problem = mlp(sizes, mesh, share)
    climbed = climb(problem, problem.start, 5000)
    assert problem.better(best, climbed)
    found = min(seen(problem, [climbed]), key=problem.rank)
    assert not problem.better(best, found)


def test_starts_that_cost_the_same_are_all_gone_on_from(monkeypatch):
    """They can be changed to other plans if they have other moves."""
    problem = mlp()
    first, second = problem.moves[0], next(m for m in problem.moves if m.axis == 1)
    moves = {(first, second), (second, first)}
    changed = []
    monkeypatch.setattr(
        "partita.search.best_first.changes", lambda _, moves: changed.append(moves) or []
    )
    seen(problem, [problem.replay(each) for each in moves])
    assert set(changed) == moves


def test_it_keeps_to_its_limit_and_its_moves_lead_to_its_plans():
    problem = mlp()
    states = seen(problem, [problem.start], limit=50)
    assert problem.evaluations == 50
    assert all(mlp().replay(state.moves).tiling == state.tiling for state in states[:10])


@pytest.mark.parametrize("sizes", SIZES)
def test_the_default_search_fits_down_to_the_least_that_any_plan_takes(sizes):
    """A ladder of limits, from that of all plans that whole moves lead to upwards."""
    problem = mlp(sizes, "data=4,model=2")
    exhaust(problem, 5000)
    every = problem.proposals(5000)
    one, least = problem.start.cost.peak, min(state.cost.peak for state in every)
    for room in (1.0001, 1.01, 1.3):
        tight = mlp(sizes, "data=4,model=2", room * least / one)
        found = run(ALGORITHMS["iterated"], tight, budget=400)
        assert found.cost.peak <= tight.cost_model.capacity
