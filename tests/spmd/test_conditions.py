"""Control flow that depends on sharded values: all devices decide alike, by the whole value."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import numbers, runs_as_the_original

M = pt.ManualPartition

VECTOR = np.array([0, 1, 9, 9.5, 3, 20, 11, 12, 13, 14, 15, 16, 17, 18, 19, 2], np.float32)
MATRIX = 0.1 * numbers(16, 16)


def until_any(y):
    return lax.while_loop(lambda y: jnp.any(y < 10), lambda y: y + 1, y)


def while_all(y):
    return lax.while_loop(lambda y: jnp.all(y < 25), lambda y: y + 1, y)


def until_the_largest(y):
    return lax.while_loop(lambda y: y.max() < 30, lambda y: y * 1.5, y)


def with_a_limit(y):
    def goes_on(carry):
        return jnp.any(carry[0] < 10) & (carry[1] < 4)

    return lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] + 1), (y, 0))


def carried_flag(y):
    """The condition is a value that the body has made."""

    def body(carry):
        y, _ = carry
        return y + 1, jnp.any(y < 10)

    return lax.while_loop(lambda carry: carry[1], body, (y, True))[0]


def counted(y):
    return lax.while_loop(lambda c: jnp.any(c[0] > 1e-2), lambda c: (c[0] / 2, c[1] + 1), (y, 0))


def jacobi(y, a):
    """What the body gathers makes devices wait for each other."""
    start = jnp.zeros_like(y), jnp.ones_like(y)
    apart = lambda c: jnp.any(jnp.abs(c[0] - c[1]) > 1e-3)  # noqa: E731
    return lax.while_loop(apart, lambda c: (y - a @ c[0], c[0]), start)[0]


def loop_in_scan(y, a):
    return lax.scan(lambda y, row: (until_any(y - row), y.sum()), y, a[:3])


def loop_in_loop(y):
    body = lambda y: until_any(y - 2) + 5  # noqa: E731
    return lax.while_loop(lambda y: jnp.all(y < 40), body, y)


def branch_in_loop(y):
    def body(y):
        return lax.cond(jnp.max(y) > 15, lambda y: y * 0.5, lambda y: y + 4, y)

    return lax.fori_loop(0, 5, lambda _, y: body(y), y)


def switch(y, a):
    branches = [lambda y: y + 1, lambda y: y @ a, lambda y: -y]
    return lax.switch((y.sum() > 3).astype(jnp.int32) + jnp.any(y > 18), branches, y)


def gathers_in_a_branch(y, a):
    return lax.cond(jnp.all(y >= 0), lambda: a @ y, lambda: y)


def per_example(a, y):
    """Every example goes on until it is done; weights are gathered inside."""

    def one(x):
        goes_on = lambda x: jnp.linalg.norm(x) > 0.05  # noqa: E731
        return lax.while_loop(goes_on, lambda x: jnp.tanh(a @ x) * 0.9, x)

    return jax.vmap(one)(y)


PROGRAMS = {
    fn.__name__: (fn, args, parts)
    for fn, args, *parts in (
        (until_any, (VECTOR,), {"y": 0}),
        (while_all, (VECTOR,), {"y": 0}),
        (until_the_largest, (VECTOR,), {"y": 0}),
        (with_a_limit, (VECTOR,), {"y": 0}),
        (carried_flag, (VECTOR,), {"y": 0}),
        (counted, (VECTOR,), {"y": 0}),
        (jacobi, (VECTOR, MATRIX), {"y": 0}),
        (loop_in_scan, (VECTOR, MATRIX), {"y": 0}),
        (loop_in_loop, (VECTOR,), {"y": 0}),
        (branch_in_loop, (VECTOR,), {"y": 0}),
        (switch, (VECTOR, MATRIX), {"y": 0}, {"a": 0}),
        (gathers_in_a_branch, (VECTOR, MATRIX), {"y": 0}, {"a": 1}),
        (per_example, (MATRIX, MATRIX), {"y": 0}, {"a": 0}),
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_devices_decide_alike(name):
    fn, args, parts = PROGRAMS[name]
    tactics = [M(part, "x") for part in parts]
    plan = pt.plan(fn, *args, mesh="x=8", hardware="cpu", tactics=tactics)
    assert any(plan.in_shardings[0])
    runs_as_the_original(plan, *args)


def test_the_condition_of_a_loop_is_reduced_in_it():
    plan = pt.plan(until_any, VECTOR, mesh="x=8", hardware="cpu", tactics=[M({"y": 0}, "x")])
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", 1)]


def test_devices_may_decide_differently_where_they_do_not_communicate():
    """Inside a shard_map each device loops as its own values say; along y all do the same."""

    @functools.partial(
        jax.shard_map, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False
    )
    def each(y):
        return until_any(y)

    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        plan = pt.plan(each, VECTOR, mesh=mesh, hardware="cpu", tactics=[M({"y": 0}, "y")])
        parts = VECTOR.reshape(4, 4)
        expected = np.concatenate([np.asarray(until_any(part)) for part in parts])
        np.testing.assert_array_equal(plan.jit()(VECTOR), expected)
