"""The order of plans, and the one number that searches steer by."""

from __future__ import annotations

import dataclasses

import pytest

from partita.cost.estimate import StepTime
from partita.search.problem import NOISE
from searching import mlp


@pytest.fixture
def problem():
    return mlp()


def costing(state, seconds, peak):
    """A state as if it took so many seconds, and so much memory."""
    time = StepTime(seconds, 0.0, (0.0,))
    return dataclasses.replace(state, cost=dataclasses.replace(state.cost, time=time, peak=peak))


def test_plans_without_what_must_not_be_come_first_then_those_that_fit_then_quick_ones(problem):
    room, allowed = problem.cost_model.capacity, problem.start
    avoided = problem.replay(problem.moves[:1])
    problem.avoided = lambda lowering: lowering is avoided.lowering
    in_order = [
        costing(allowed, 1.0, room),
        costing(allowed, 2.0, room / 2),
        costing(allowed, 0.2, 2 * room),
        costing(allowed, 0.1, 3 * room),
        costing(avoided, 0.1, room),
        costing(avoided, 0.1, 2 * room),
    ]
    assert sorted(reversed(in_order), key=problem.rank) == in_order


@pytest.mark.parametrize(("gain", "better"), [(NOISE / 2, False), (2 * NOISE, True)])
def test_a_move_has_to_gain_more_than_the_noise(problem, gain, better):
    start, moved = problem.start, problem.replay(problem.moves[:1])
    assert moved.weight == 1
    quicker = costing(moved, 1 - gain, 1)
    assert problem.better(quicker, costing(start, 1.0, 1)) == better


def test_what_is_too_large_counts_for_more_than_what_is_slow(problem):
    room = problem.cost_model.capacity
    fits, smaller, larger = (
        problem.log_cost(costing(problem.start, seconds, peak))
        for seconds, peak in ((2.0, room), (2.0, room / 2), (1.0, 1.5 * room))
    )
    assert fits == smaller < larger
