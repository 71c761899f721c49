"""What a loop accumulates is reduced once, after the loop, where that is the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import numbers, runs_as_the_original

W = jax.ShapeDtypeStruct((32, 32), jnp.float32)
XS = jax.ShapeDtypeStruct((4, 16, 32), jnp.float32)
BATCH = pt.ManualPartition({"xs": 1}, axis="x")


def loss(w, x, dtype=jnp.float32):
    y = jnp.tanh(x.astype(dtype) @ w.astype(dtype))
    return jnp.mean(y.astype(jnp.float32) ** 2)


def micro_steps(start=jnp.zeros_like, add=lambda total, g: total + g, dtype=jnp.float32):
    """A function that accumulates the gradients of four micro-steps."""

    def step(w, xs):
        def one(total, x):
            return add(total, jax.grad(loss)(w, x, dtype)), None

        return jax.lax.scan(one, start(w), xs)[0]

    return step


def planned(fn, *tactics):
    return pt.plan(fn, W, XS, mesh="x=8", hardware="tpu_v5e", tactics=[BATCH, *tactics])


def checked(plan):
    """Runs it beside the original; the collectives."""
    runs_as_the_original(
        plan, *(numbers(*t.shape, seed=n) for n, t in enumerate((W, XS))), tolerance=2e-4
    )
    return [(c.kind, c.count, c.dtype) for c in plan.collectives]


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (micro_steps(), "added"),
        (micro_steps(dtype=jnp.bfloat16), "made in bfloat16, and widened before it is added"),
        (micro_steps(add=lambda total, g: total - 0.1 * g), "scaled and subtracted"),
        (micro_steps(add=lambda total, g: 0.9 * total + g), "a sum that decays is still linear"),
        (micro_steps(add=lambda total, g: (total + g).T), "turned each time"),
    ],
)
def test_gradients_of_micro_steps_are_reduced_once(fn, why):
    plan = planned(fn)
    assert checked(plan) == [("all_reduce", 1, "f32")], why
    assert plan.estimate.traffic["all_reduce", ("x",)].count == 1


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (micro_steps(start=jnp.ones_like), "every device would add the ones"),
        (micro_steps(start=lambda w: w), "the same of an argument"),
        (micro_steps(add=lambda total, g: jnp.tanh(total + g)), "not linear"),
        (micro_steps(add=lambda total, g: total + g + jnp.sin(total)), "read otherwise as well"),
        (micro_steps(add=lambda total, g: total + g + 1.0), "something whole is added"),
        (micro_steps(add=lambda total, g: total + g + g.T), "a partial value has one use"),
    ],
)
def test_where_that_is_not_the_same_they_are_reduced_in_the_loop(fn, why):
    assert checked(planned(fn)) == [("all_reduce", 4, "f32")], why


def test_what_is_reduced_in_the_loop_stays_narrow():
    fn = micro_steps(start=jnp.ones_like, dtype=jnp.bfloat16)
    plan = planned(fn)
    assert [(c.kind, c.count, c.dtype) for c in plan.collectives] == [("all_reduce", 4, "bf16")]


def test_partial_micro_steps_of_a_sharded_weight_are_scattered_in_the_loop():
    """The sum is kept in pieces, which saves memory; each step scatters into them."""
    fn = micro_steps()
    plan = planned(fn, pt.ManualPartition({"w": 0, "result": 0}, axis="x"))
    kinds = {(kind, count) for kind, count, _ in checked(plan)}
    assert ("reduce_scatter", 4) in kinds


def test_loops_inside_of_loops_hand_the_sum_out():
    def fn(w, xs):
        def outer(total, x):
            def inner(part, rows):
                return part + jax.grad(loss)(w, rows), None

            return total + jax.lax.scan(inner, jnp.zeros_like(w), jnp.stack([x, -x]))[0], None

        return jax.lax.scan(outer, jnp.zeros_like(w), xs)[0]

    assert checked(planned(fn)) == [("all_reduce", 1, "f32")]


def test_the_search_prices_what_the_plan_does():
    automatic = pt.AutomaticPartition(axes=["x"], budget=50)
    plan = pt.plan(micro_steps(), W, XS, mesh="x=8", hardware="tpu_v5e", tactics=[automatic])
    counted = sum(traffic.count for traffic in plan.estimate.traffic.values())
    assert counted == sum(c.count for c in plan.collectives)
