"""Intermediate values that the user has named with `jax.ad_checkpoint.checkpoint_name`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import partita as pt
from checks import array, planner


def model(w, x):
    hidden = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return (hidden @ w.T).sum()


planned = planner(mesh="data=2,model=4")


def test_a_tactic_can_name_a_tagged_value():
    plan = planned(
        model, array(8, 16), array(4, 8), tactics=[pt.ManualPartition({"hid*": 1}, "model")]
    )
    assert plan.in_shardings[0] == jax.P(None, "model")
    assert plan.history[0].tiled["hidden"] == (None, "model")


def test_the_program_that_runs_is_unchanged_by_tags():
    w, x = jnp.ones((8, 16)), jnp.ones((4, 8))
    step = jax.value_and_grad(model)
    plan = planned(step, w, x, tactics=[pt.ManualPartition({"hidden": 0}, "data")])
    np.testing.assert_allclose(plan.jit()(w, x)[1], step(w, x)[1], rtol=1e-6)


def test_what_a_loop_hands_on_and_what_it_gives_can_be_tagged():
    def fn(x):
        x = checkpoint_name(x, "start")

        def body(carry, _):
            return jnp.sin(checkpoint_name(carry, "carry")), None

        return checkpoint_name(jax.lax.scan(body, x, None, length=3)[0], "end")

    plan = planned(fn, array(8), tactics=[pt.ManualPartition({"carry": 0}, "data")])
    assert {name for name, _ in plan.program.tagged} == {"start", "carry", "end"}
    assert plan.in_shardings[0] == jax.P("data")


@pytest.mark.parametrize("first", [jnp.sin, lambda x: x, lambda x: jax.lax.top_k(x, 8)[0]])
def test_a_name_stays_with_what_an_operation_is_replaced_by(first):
    """A select by a constant is what that selects, be that an operation's only value or not."""

    def fn(x, y):
        return jnp.cos(checkpoint_name(jnp.where(True, first(x), y), "chosen"))

    plan = planned(fn, array(8), array(8))
    assert "select" not in {op.short for op in plan.program.operations}
    assert [name for name, _ in plan.program.tagged] == ["chosen"]


def test_one_name_may_stand_for_several_values():
    def fn(x):
        for _ in range(3):
            x = checkpoint_name(jnp.sin(x), "step")
        return x

    plan = planned(fn, array(8), tactics=[pt.ManualPartition({"step": "replicate"}, "data")])
    assert len(plan.history[0].decisions) == 3
    assert plan.history[0].decisions[0].startswith("keeps step (sine at ")
