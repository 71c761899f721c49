"""What is planned is forgotten with the last reference to it; neither partita nor JAX keeps it."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import partita as pt

X, W = jnp.ones((16, 8)), jnp.ones((8, 8))

OPTIONS = {"mesh": "data=4", "hardware": "cpu"}
MANUAL = {**OPTIONS, "tactics": pt.DataParallel("data")}


def jitted(fn, **options):
    return pt.jit(fn, **{**MANUAL, **options})


def saved(fn, tmp_path):
    plan = pt.plan(fn, X, W, **MANUAL)
    plan.save(tmp_path / "plan.json")
    return pt.jit(fn, saved=tmp_path / "plan.json")


@pytest.mark.parametrize(
    "use",
    [
        lambda fn, _: jitted(fn)(X, W),
        lambda fn, _: jitted(fn, static_argnums=2)(X, W, 3),
        lambda fn, _: jitted(fn, hoist_constants=True)(X, w=W),
        lambda fn, _: jax.grad(jitted(fn))(X, W),
        lambda fn, _: jax.vmap(jitted(fn), (None, 0))(X, jnp.stack([W, W])),
        lambda fn, _: jax.jit(lambda x, w: jitted(fn)(x, w) + 1)(X, W),
        lambda fn, _: jitted(jax.jit(fn))(X, W),
        lambda fn, _: jitted(fn).lower(X, W),
        lambda fn, _: jitted(fn).eval_shape(X, W),
        lambda fn, _: pt.plan(fn, X, W, **OPTIONS, budget=20).jit()(X, W),
        lambda fn, tmp_path: saved(fn, tmp_path)(X, W),
        lambda fn, _: str(pt.plan(fn, X, W, **MANUAL).verify()),
        lambda fn, _: str(pt.plan(fn, X, W, **MANUAL).explain("collectives")),
        lambda fn, _: pt.plan(fn, X, W, **MANUAL).core.run(X, W),
        lambda fn, tmp_path: pt.plan(fn, X, W, **MANUAL).report(tmp_path / "page.html"),
        lambda fn, _: pt.simulate(fn, X, W, **OPTIONS, in_shardings=(jax.P("data"), None)),
    ],
)
def test_nothing_keeps_a_function_that_was_planned(use, tmp_path):
    constant = jnp.ones((8, 64))

    def fn(x, w, power=2):
        return (jnp.tanh(x @ w) @ constant).sum() ** power

    use(fn, tmp_path)
    alive = weakref.ref(fn)
    del fn
    gc.collect()
    assert alive() is None


def test_nothing_keeps_a_plan():
    step = jitted(lambda x, w: jnp.tanh(x @ w).sum())
    step(X, W)
    (plan,) = step.plans.values()
    alive = [weakref.ref(each) for each in (plan, plan.program, plan.done, plan.executable)]
    step.clear_cache()
    del plan
    gc.collect()
    assert not any(each() for each in alive)
