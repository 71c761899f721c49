"""Search algorithms: what each of them promises, on programs small enough to look at every plan."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import partita as pt
from partita.errors import TacticError
from partita.search import ALGORITHMS, exhaust
from searching import SIZES, forward, mlp, run

OTHERS = ["beam", "greedy"]


# ------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", OTHERS)
def test_an_algorithm_keeps_its_promises(name):
    problem = mlp()
    found = run(ALGORITHMS[name], problem, budget=60, seed=1)
    assert problem.evaluations <= 60
    assert not problem.better(problem.start, found)
    # Its moves are what leads there.
    again = mlp()
    assert again.replay(found.moves).tiling == found.tiling
    # Equal seeds give equal plans.
    assert run(ALGORITHMS[name], mlp(), budget=60, seed=1).moves == found.moves


@pytest.mark.parametrize("name", OTHERS)
def test_where_there_is_nothing_to_decide_the_plan_stays_as_it_is(name):
    problem = mlp(mesh="data=7")
    assert run(ALGORITHMS[name], problem) is problem.start


# -------------------------------------------------------------------------------- exhaustive


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("sizes", SIZES)
def test_no_plan_is_better_than_the_best_of_all(sizes, share):
    problem = mlp(sizes, share=share)
    found = exhaust(problem, 5000)
    assert found.complete
    assert found.states == problem.evaluations + 1 > 100
    assert not problem.better(problem.best, found.best)
    for name in OTHERS:
        assert not problem.better(run(ALGORITHMS[name], mlp(sizes, share=share), 1000), found.best)


def test_the_best_of_all_has_as_few_moves_as_lead_there():
    problem = mlp(mesh="data=2")
    for a in problem.moves:
        for b in problem.moves:
            problem.replay((a, b))
    best = exhaust(problem, 5000).best
    fresh = exhaust(mlp(mesh="data=2"), 5000).best
    assert len(best.moves) == len(fresh.moves)
    assert best.tiling == fresh.tiling


def test_exhaustive_search_ends_at_its_limit_and_says_so():
    problem = mlp()
    found = exhaust(problem, 50)
    assert not found.complete
    assert found.states == 51
    assert problem.evaluations <= 51


def test_what_a_search_has_evaluated_is_not_evaluated_again():
    problem = mlp(mesh="data=2")
    exhaust(problem, 5000)
    before = problem.evaluations
    assert exhaust(problem, 5000).complete
    assert problem.evaluations == before


def test_all_plans_are_asked_for_by_name_and_too_many_are_refused():
    def plan(budget):
        return pt.plan(
            forward,
            *(jnp.ones((64, 64)),) * 3,
            mesh="data=2,model=2",
            hardware="tpu_v5e",
            tactics=pt.AutomaticPartition(search="exhaustive", budget=budget),
        )

    with pytest.raises(TacticError, match="there are more than 10 plans, too many for exhaustive"):
        plan(10)
    assert plan(5000).history[0].decisions == ("nothing: no move helps, of 2547 plans in all",)


# --------------------------------------------------------------------------------- greedy, beam


def test_greedy_search_ends_where_no_move_helps():
    problem = mlp("wide batch")
    found = run(ALGORITHMS["greedy"], problem, 1000)
    assert found.moves
    assert not any(
        problem.better(problem.replay((*found.moves, move)), found) for move in problem.moves
    )


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_beam_finds_no_worse_than_greedy_search(sizes, share):
    problem = mlp(sizes, share=share)
    greedy = run(ALGORITHMS["greedy"], problem, 1000)
    assert not problem.better(greedy, run(ALGORITHMS["beam"], mlp(sizes, share=share), 2000))
