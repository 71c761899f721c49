"""Starts are ordered by what becomes of them if every class chooses its layout for itself."""

from __future__ import annotations

import numpy as np
import pytest

from partita.decisions import DecisionGroup
from partita.search.bounds.descent import Descent, Descents
from partita.search.bounds.relaxed import Relaxed
from partita.search.refine import polish
from partita.search.relaxed_starts import promising
from partita.search.simplified import changed
from partita.search.starts import best_starts
from partita.tiling import local_type
from searching import SIZES, mlp

MANY = 10**6


@pytest.mark.parametrize("sizes", SIZES)
def test_a_descent_ends_where_no_choice_is_better_by_itself(sizes):
    problem = mlp(sizes)
    relaxed = Relaxed(problem)
    energy = relaxed.energy(0.95)
    descent = Descent(energy)
    for start in best_starts(problem, 8, MANY):
        before = relaxed.of(start.lowering)
        after = descent.run(before)
        assert energy.of(after) <= energy.of(before)
        for node, costs in enumerate(energy.nodes):
            for choice in range(len(costs)):
                other = [*after[:node], choice, *after[node + 1 :]]
                assert energy.of(after) <= energy.of(other) * (1 + 1e-6)


def test_what_every_choice_costs_is_what_it_changes_of_the_energy():
    relaxed = Relaxed(mlp())
    energy = relaxed.energy(0.8)
    choices = [0] * len(energy.nodes)
    totals = np.split(Descent(energy).totals(choices), np.cumsum([len(n) for n in energy.nodes]))
    for node, costs in enumerate(energy.nodes):
        for choice in range(len(costs)):
            other = [*choices[:node], choice, *choices[node + 1 :]]
            difference = energy.of(other) - energy.of(choices)
            assert totals[node][choice] - totals[node][0] == pytest.approx(difference, abs=1e-9)


@pytest.mark.parametrize("sizes", SIZES)
def test_of_two_descents_one_leaves_no_value_larger_than_it_is(sizes):
    problem = mlp(sizes, "data=4,model=2")
    descents, moved = Descents(Relaxed(problem), 0.95), 0
    for start in best_starts(problem, 12, MANY):
        _, no_larger = descents.tilings(start.lowering)
        moved += no_larger != start.tiling
        for value, plan, layout in zip(
            problem.graph.values, start.lowering.plans, no_larger.values, strict=True
        ):
            now, after = (
                local_type(value.value.type, each, problem.mesh).bytes
                for each in (plan.layout, layout)
            )
            assert after <= now
    assert moved


@pytest.mark.parametrize("sizes", SIZES)
def test_starts_come_in_the_order_of_what_becomes_of_them(sizes):
    problem = mlp(sizes)
    starts = best_starts(problem, 20, MANY)
    found = promising(problem, Relaxed(problem), starts, MANY)
    assert {each.start.key for each in found} == {start.key for start in starts}
    ranks = [problem.rank(each.best) for each in found]
    assert ranks == sorted(ranks)
    assert all(problem.rank(each.best) <= problem.rank(each.start) for each in found)


def test_a_start_may_become_better_than_any_that_is_polished():
    problem = mlp("even")
    starts = best_starts(problem, 20, MANY)
    first = promising(problem, Relaxed(problem), starts, MANY)[0]
    assert first.start is not starts[0]
    polished = [problem.time(polish(problem, start, MANY)) for start in starts]
    assert problem.time(first.best) < 0.8 * min(polished)
    # Its moves lead there.
    lowered = mlp("even").replay(first.best.moves)
    assert lowered.tiling == first.best.tiling


def test_no_more_is_evaluated_than_may_be():
    problem = mlp()
    starts = best_starts(problem, 20, MANY)
    limit = problem.evaluations + 5
    promising(problem, Relaxed(problem), starts, limit)
    assert problem.evaluations == limit


def test_a_descended_plan_is_the_start_and_the_classes_that_change():
    problem = mlp("even")
    start = best_starts(problem, 1, MANY)[0]
    for tiling in Descents(Relaxed(problem), 0.95).tilings(start.lowering):
        actions = tuple(changed(problem, start.tiling, tiling))
        after = problem.step(start, DecisionGroup(tuple(actions)))
        assert after is None or after.tiling == tiling
