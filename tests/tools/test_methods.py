"""Methods that a search is compared with: what each of them promises."""

from __future__ import annotations

import pytest
from tools.methods import METHODS, automap

from searching import mlp, run

FURTHER = ["annealing", "automap", "random"]


@pytest.mark.parametrize("name", FURTHER)
def test_a_method_keeps_its_promises(name):
    problem = mlp()
    found = run(METHODS[name], problem, budget=60, seed=1)
    assert problem.evaluations <= 60
    assert problem.better(found, problem.start)
    # Its moves are what leads there.
    assert mlp().replay(found.moves).tiling == found.tiling
    # Equal seeds give equal plans, others see others.
    assert run(METHODS[name], mlp(), budget=60, seed=1).moves == found.moves


@pytest.mark.parametrize("name", FURTHER)
def test_where_there_is_nothing_to_decide_the_plan_stays_as_it_is(name):
    problem = mlp(mesh="data=7")
    assert run(METHODS[name], problem) is problem.start


def test_a_move_on_an_argument_takes_the_part_of_its_color_that_the_argument_is_in():
    problem = mlp()
    for chosen in automap.argument_moves(problem):
        state = automap.step(problem, problem.start, chosen)
        tiled = state.tiling.values[chosen.argument][chosen.dim]
        assert tiled == (chosen.move.axis,)
        node = ("value", chosen.argument, chosen.dim)
        reached = problem.propagator.tile_nodes(
            problem.start.tiling, [node], chosen.move.axis, dict(chosen.move.roles)
        )
        assert reached.tiling == state.tiling
