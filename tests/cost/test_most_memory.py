"""What a compiler's scheduler may keep alive for longer, beside what is predicted."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita import cost
from partita.report.collect import summary

HELD = cost.load("h100").kernels.held_longer.value


def planned(hardware, memory=None):
    return pt.plan(
        lambda w, x: jnp.tanh(x @ w) @ w.T,
        array(256, 256),
        array(1024, 256),
        mesh="x=4",
        hardware=hardware,
        memory=memory,
        tactics=[pt.ManualPartition({"x": 0}, "x")],
    )


def test_it_is_a_share_of_what_is_alive_besides_arguments():
    plan = planned("h100")
    temporary = plan.estimate.peak_memory - plan.estimate.argument_memory
    assert plan.most_memory == plan.estimate.peak_memory + round(HELD * temporary)
    assert "at the most" in str(plan)


@pytest.mark.parametrize("hardware", ["a100_80gb", "tpu_v5e", "cpu"])
def test_other_compilers_keep_nothing(hardware):
    plan = planned(hardware)
    assert plan.most_memory == plan.estimate.peak_memory
    assert "at the most" not in str(plan)


def test_the_report_warns_where_only_that_does_not_fit():
    tight = planned("h100", planned("h100").estimate.peak_memory)
    assert tight.estimate.fits and tight.most_memory > tight.estimate.capacity
    assert "MAY NOT FIT" in str(tight) and "sol_latency_estimator" in str(tight)
    assert "MAY NOT FIT" not in str(planned("h100"))


def test_it_is_in_json():
    plan = planned("h100")
    assert json.loads(json.dumps(summary(plan.done)))["most_memory"] == plan.most_memory
