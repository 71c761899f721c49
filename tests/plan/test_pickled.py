"""Plans and planned functions are copied, pickled and sent to other processes as other data are."""

from __future__ import annotations

import copy
import functools
import gc
import pickle

import jax
import jax.numpy as jnp
import pytest

import partita as pt

X, W = jnp.arange(128.0).reshape(16, 8) / 128, jnp.eye(8) / 2

SEARCHED = {"mesh": "a=4,b=2", "hardware": "cpu", "tactics": pt.AutomaticPartition(budget=20)}


def function(x, w):
    return jnp.tanh(x @ w)


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture(scope="module")
def plan():
    made = pt.plan(function, X, W, **SEARCHED, progress=lambda done, total, text: None)
    str(made)  # with all that it has worked out
    return made


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_plan_does_what_the_plan_does(plan, copied):
    again = copied(plan)
    assert str(again) == str(plan)
    assert str(again.explain("*")) == str(plan.explain("*"))
    assert again.contents() == plan.contents()
    assert jnp.allclose(again.jit()(X, W), function(X, W))
    more = pt.ManualPartition({"w": 1}, axis="b")
    assert str(again.then(more)) == str(plan.then(more))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_planned_function_plans_for_itself(copied):
    run = pt.jit(function, **SEARCHED)
    run(X, W)
    again = copied(run)
    assert not again.plans
    assert jnp.allclose(again(X, W), function(X, W))
    assert again.__name__ == "function"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whatever_ends_planning_leaves_nothing_behind(error):
    class Fails:
        name, failed = "Fails", False

        def apply(self, stage):
            if not self.failed:
                self.failed = True
                raise error
            return pt.ManualPartition({"x": 0}, axis="a").apply(stage)

    run = pt.jit(function, mesh="a=4", hardware="cpu", tactics=[Fails()])
    with pytest.raises(error):
        run(X, W)
    assert gc.isenabled() and not run.plans
    assert jnp.allclose(run(X, W), function(X, W))


def test_planned_functions_call_planned_functions():
    options = {"mesh": "a=4", "hardware": "cpu", "tactics": pt.ManualPartition({"x": 0}, axis="a")}

    @functools.partial(pt.jit, **options, static_argnums=1)
    def times(x, number):
        return x if number == 0 else times(x, number - 1) * 2

    assert jnp.array_equal(times(X, 3), 8 * X)

    @functools.partial(pt.jit, **options)
    def without_end(x):
        return without_end(x) + 1

    with pytest.raises(pt.TraceError, match="RecursionError"):
        without_end(X)


@pytest.mark.parametrize("arguments", [(), (X,), ({"a": X, "b": W},)])
def test_a_program_that_does_nothing(arguments):
    shapes = jax.eval_shape(lambda: arguments)
    made = pt.plan(lambda *given: given, *shapes, **SEARCHED)
    pairs = zip(*map(jax.tree.leaves, (made.jit()(*arguments), arguments)), strict=True)
    assert all(jnp.array_equal(*pair) for pair in pairs)
