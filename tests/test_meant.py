"""Options of partita and arguments of the function: neither is taken for the other."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import pytest

import partita as pt

X = jax.ShapeDtypeStruct((8, 4), jnp.float32)
OVER = {"mesh": "data=4", "hardware": "cpu"}


def step(x, w=2.0):
    return jnp.sin(x) * w


def noisy(x, seed=7):
    return x + seed


def sized(x, *, budget):
    return x * budget


def open_(x, **others):
    return x + sum(others.values())


@pytest.fixture
def saved(tmp_path):
    """The file of a plan of `step`."""
    pt.plan(step, X, **OVER).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    ("option", "hint"),
    [("time_limit", ""), ("budjet", "did you mean 'budget'"), ("ww", "did you mean 'w'")],
)
def test_an_option_that_nobody_has_is_an_error_of_the_call(option, hint):
    with pytest.raises(pt.OptionError) as found:
        pt.plan(step, X, **OVER, **{option: 3})
    told = str(found.value)
    assert told.startswith(f"plan has no option '{option}', and step has no parameter of that name")
    assert hint in told


def test_the_same_for_all_that_plan(saved):
    for call in (
        lambda: pt.simulate(step, X, **OVER, limit=3),
        lambda: pt.load(saved, step, X, limit=3),
        lambda: pt.plan(jax.jit(step), X, **OVER, limit=3),
        lambda: pt.plan(functools.partial(step, w=1.0), X, **OVER, limit=3),
    ):
        with pytest.raises(
            pt.OptionError, match="has no option 'limit', and step has no parameter"
        ):
            call()


def test_jit_has_options_only():
    with pytest.raises(pt.OptionError, match="no option 'budjet'; did you mean 'budget'"):
        pt.jit(step, **OVER, budjet=3)
    with pytest.raises(pt.OptionError, match="no option 'w'"):
        pt.jit(**OVER, w=3)


def test_a_function_that_takes_anything_gets_it():
    plan = pt.plan(open_, X, **OVER, limit=X)
    assert plan.program.argument_names == ("x", "others['limit']")


def test_what_is_an_option_and_a_parameter_is_told():
    told = r"seed= is an option of plan, and a parameter of noisy, too.* keeps its own, which is 7"
    with pytest.warns(pt.PartitaWarning, match=told):
        pt.plan(noisy, X, **OVER, seed=3)
    with pytest.warns(pt.PartitaWarning, match=told):
        pt.plan(noisy, X, **OVER, seed=0)  # the default of the option
    with pytest.raises(pt.OptionError, match="sized lacks its own; give that by position, or plan"):
        pt.plan(sized, X, **OVER, budget=3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pt.plan(noisy, X, **OVER),
        lambda: pt.plan(noisy, X, X, **OVER, seed=3),
        lambda: pt.plan(functools.partial(noisy, seed=7), X, **OVER, seed=3),
        lambda: pt.plan(functools.partial(sized, budget=7), X, **OVER, budget=3),
        lambda: pt.plan(lambda x, seed, /: x + seed, X, X, **OVER, seed=3),
        lambda: pt.plan(jnp.sin, X, **OVER, seed=3),
    ],
)
def test_what_is_clear_is_not(call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()


@pytest.mark.parametrize("name", ["seed", "budget", "memory", "mesh", "hardware", "tactics"])
def test_arguments_of_a_planned_function_may_be_called_as_options(name):
    made = {}
    exec(f"def named(x, *, {name}): return x * {name}", made)
    run = pt.jit(made["named"], **OVER, tactics=pt.DataParallel("data"))
    x = jnp.ones((8, 4))
    assert jnp.array_equal(run(x, **{name: 3.0}), 3 * x)
    assert jnp.array_equal(run(x, **{name: jnp.float32(4)}), 4 * x)
    assert run.lower(x, **{name: 3.0}).as_text()
    assert run.eval_shape(x, **{name: 3.0}).shape == (8, 4)
    assert next(iter(run.plans.values())).program.argument_names[1] == name


def test_the_same_for_a_plan_that_was_saved(tmp_path):
    def scaled(x, memory):
        return x * memory

    x, file = jnp.ones((8, 4)), tmp_path / "plan.json"
    run = pt.jit(scaled, **OVER)
    run(x, memory=2.0)
    (plan,) = run.plans.values()
    plan.save(file)
    assert jnp.array_equal(pt.jit(scaled, saved=file)(x, memory=2.0), 2 * x)
