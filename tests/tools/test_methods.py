"""Methods that a search is compared with: what each of them promises."""

from __future__ import annotations

import pytest
from tools.methods import METHODS, automap, integer
from tools.methods.cases import Case, Problems, least_peak

from partita.search.bounds.messages import Messages
from partita.search.bounds.relaxed import Relaxed
from searching import mlp, run

FURTHER = ["annealing", "automap", "random"]
"""Those of which all moves can be made again one by one."""


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


def test_layouts_free_for_every_class_are_a_good_start():
    problem = mlp("wide batch")
    found = run(METHODS["relaxed"], problem, budget=200)
    assert problem.evaluations <= 200
    assert not problem.better(run(METHODS["iterated"], mlp("wide batch"), budget=200), found)


def test_message_passing_nears_the_linear_relaxation_of_the_integer_program():
    energy = Relaxed(mlp()).energy(0.9)
    messages = Messages(energy)
    bound = max(messages.run(energy)[0] for _ in range(40))
    mixed = integer.solve(energy, 20, relaxed=True)
    whole = integer.solve(energy, 20)
    assert energy.of(whole.choices) == pytest.approx(whole.value)
    assert bound <= mixed.value * (1 + 1e-6)
    assert mixed.value <= whole.value * (1 + 1e-6)
    assert bound == pytest.approx(mixed.value, rel=0.01)


def test_memory_as_a_multiple_of_the_least_that_any_plan_takes():
    problems, free = Problems({}), Case("mlp", "2x2", "tpu_v5e")
    least = problems.least(free)
    assert least <= least_peak(problems.of(free))
    tight = problems.of(Case("mlp", "2x2", "tpu_v5e", "least*1.02"))
    assert tight.cost_model.capacity == pytest.approx(1.02 * least, abs=1)
