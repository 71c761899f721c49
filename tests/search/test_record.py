"""What a search leaves for reports: how the best came down, and the best different plans."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner

plan = planner(mesh="data=4,model=2")


def step(w, x):
    return (jnp.tanh(x @ w) @ w.T).sum()


@pytest.fixture(scope="module")
def made():
    return plan(step, array(256, 256), array(64, 256), tactics=[pt.AutomaticPartition(budget=200)])


@pytest.fixture(scope="module")
def record(made):
    return made.history[0].search


def test_each_plan_of_the_curve_comes_later_and_is_better(record):
    for a, b in itertools.pairwise(record.curve):
        assert a.evaluations < b.evaluations <= record.evaluations
        assert b.step_time < a.step_time


def test_the_first_proposal_is_the_plan(made, record):
    first = record.proposals[0]
    assert first.time.step_time == made.estimate.step_time
    assert first.layouts == made.spmd.argument_layouts


def test_proposals_differ_and_are_in_order(record):
    times = [p.time.step_time for p in record.proposals]
    assert 1 < len(times) <= 10 and times == sorted(times)
    assert len({(p.time.step_time, p.peak_memory) for p in record.proposals}) == len(times)


def test_manual_tactics_have_none():
    manual = plan(step, array(8, 8), array(8, 8), tactics=[pt.ManualPartition({"x": 0}, "data")])
    assert manual.history[0].search is None
