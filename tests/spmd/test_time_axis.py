"""A program that is split along one axis is a loop over it: what runs before, inside and after."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita.spmd.instructions import Run
from partita.spmd.time_axis import Coupling, TimeLoop, time_loop


def divided(fn, *args, apart=False):
    """A function's program, split along an axis of four steps by the rows of its last argument."""
    plan = pt.plan(
        fn,
        *args,
        mesh="step=4",
        hardware="tpu_v5e",
        tactics=pt.ManualPartition({"x": 0}, axis="step"),
    )
    return plan.spmd, time_loop(plan.spmd, apart)


def kinds(spmd, instructions):
    runs = (item for item in instructions if isinstance(item, Run))
    return [spmd.program.operations[item.op].short for item in runs]


def test_what_needs_the_sums_comes_after_the_loop():
    def update(w, x):
        return w - jnp.sin(jnp.sum(jnp.tanh(x @ jnp.cos(w)), axis=0))

    spmd, loop = divided(update, array(8, 8), array(16, 8))
    assert isinstance(loop, TimeLoop)
    assert "cosine" in kinds(spmd, loop.before)
    assert {"dot_general", "tanh", "reduce"} <= set(kinds(spmd, loop.body))
    assert {"sine", "subtract"} <= set(kinds(spmd, loop.after))
    (total,) = loop.sums
    assert total.step.kind == "all_reduce"
    assert not loop.stacks and not loop.kept


def test_what_is_made_of_each_example_is_stacked():
    spmd, loop = divided(lambda w, x: x @ w, array(8, 8), array(16, 8))
    ((made, dim, stack),) = loop.stacks
    assert (made, dim) == (stack, 0)
    assert made == spmd.results[0]


def test_a_number_is_spread_over_examples_in_the_loop():
    spmd, loop = divided(lambda w, x: jnp.sum(x * w[0]), array(8), array(16, 8))
    assert "broadcast_in_dim" in kinds(spmd, loop.body)
    assert "broadcast_in_dim" not in kinds(spmd, loop.before)


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: jnp.sum(jnp.tanh(x - jnp.mean(x, axis=0)) @ w),
        lambda w, x: jnp.sum(jnp.tanh(jnp.flip(x, 0) @ w) * x),
    ],
    ids=["mean", "neighbours"],
)
def test_what_couples_examples_is_no_loop(fn):
    _, loop = divided(fn, array(8, 8), array(16, 8))
    assert isinstance(loop, Coupling)


def test_examples_of_a_step_may_stand_for_all():
    def centred(w, x):
        return jnp.sum(jnp.tanh(x - jnp.mean(x, axis=0)) @ w)

    spmd, loop = divided(centred, array(8, 8), array(16, 8), apart=True)
    assert isinstance(loop, TimeLoop) and loop.apart
    assert "divide" in kinds(spmd, loop.body)  # of the sum of a step


def test_a_step_that_stands_for_all_has_as_many_times_its_sum():
    def centred(x):
        return x - jnp.sum(x, axis=0) / 16

    x = jnp.arange(32.0).reshape(16, 2) ** 2
    plan = pt.plan(
        centred,
        array(16, 2),
        mesh="data=1",
        hardware="tpu_v5e",
        tactics=pt.Microbatch(4, coupled="per_microbatch"),
    )
    parts = x.reshape(4, 4, 2)
    assert jnp.allclose(plan.jit()(x), (parts - parts.mean(1, keepdims=True)).reshape(16, 2))
