"""Maxima and minima over devices: a NaN on any device arrives, and infinities do.

Compilers' collectives forget NaN, so extremes of floats travel as integers of the same order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tools.compiling import compiled

import partita as pt
from checks import runs_as_the_original

MESH = "x=8"
SEGMENTS = np.arange(64) % 4
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf)


def planned(fn, *args, dim=0):
    return pt.plan(
        fn, *args, mesh=MESH, hardware="cpu", tactics=[pt.ManualPartition({"x": dim}, axis="x")]
    )


def same(ours, theirs):
    """The same numbers, NaN where NaN is."""
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        mine, their = np.asarray(mine, np.float64), np.asarray(their, np.float64)
        np.testing.assert_allclose(mine, their, rtol=1e-6)


def numbers(dtype=np.float32):
    """Small numbers of both signs, none twice."""
    return (np.random.default_rng(0).permutation(64) - 30.5).astype(dtype)


FUNCTIONS = {
    "max": jnp.max,
    "min": jnp.min,
    "a range": jnp.ptp,
    "the largest magnitude": lambda x: jnp.max(jnp.abs(x)),
    "argmax": jnp.argmax,
    "argmin": jnp.argmin,
    "maximum so far": lax.cummax,
    "minimum so far": lax.cummin,
    "maximum that skips NaN": jnp.nanmax,
    "logsumexp": jax.nn.logsumexp,
    "softmax": jax.nn.softmax,
    "segment_max": lambda x: jax.ops.segment_max(x, SEGMENTS, num_segments=4),
    "segment_min": lambda x: jax.ops.segment_min(x, SEGMENTS, num_segments=4),
    "maximum in windows": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME"),
    "maximum at places": lambda x: jnp.zeros(16).at[SEGMENTS].max(x),
    "several at once": lambda x: lax.reduce(
        (x, -x), (-2.0, 3.0), lambda a, b: (lax.max(a[0], b[0]), lax.min(a[1], b[1])), (0,)
    ),
    "gradient of a maximum": jax.grad(jnp.max),
    "gradient of logsumexp": jax.grad(jax.nn.logsumexp),
    "gradient of segment_max": jax.grad(
        lambda x: jnp.sum(jax.ops.segment_max(x, SEGMENTS, num_segments=4) ** 2)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_number_arrives_from_every_device(name):
    def fn(x):
        return FUNCTIONS[name](x)

    plan = planned(fn, numbers())
    ours, original = (compiled(f, numbers()) for f in (plan.jit(), jax.jit(fn)))
    for device in range(8):
        for special in SPECIAL:
            x = numbers()
            x[8 * device + device] = special
            same(ours(*plan.shard(x)), original(x))


@pytest.mark.parametrize("form", ["partitioned", "annotated"])
@pytest.mark.parametrize("fn", [jnp.max, jnp.min])
def test_all_forms_of_a_plan_keep_nan(fn, form):
    plan = planned(lambda x: fn(x, 0), numbers().reshape(8, 8))
    program = plan.lower(form=form).compile()
    x = numbers().reshape(8, 8)
    x[3, 1], x[4, 2], x[5, 3], x[6, 3] = np.nan, -np.nan, np.inf, -np.inf
    same(program(*plan.shard(x)), fn(x, 0))


TRAVEL = {
    "float64": "i64",
    "float32": "i32",
    "bfloat16": "i32",
    "float16": "i32",
    "float8_e5m2": "i32",
    "float8_e4m3fn": "i32",
    "float8_e4m3fnuz": "i32",
    "int32": "i32",
    "int16": "i16",
    "uint8": "ui8",
    "bool": "i1",
}
"""Element types, and those in which their extremes travel: whole numbers at no price."""


@pytest.mark.parametrize("fn", [lax.max, lax.min])
@pytest.mark.parametrize("dtype", TRAVEL)
def test_the_type_in_which_extremes_travel(dtype, fn):
    with jax.enable_x64(dtype == "float64"):
        x = (numbers().reshape(8, 8) > 0) if dtype == "bool" else numbers().reshape(8, 8)
        x = jnp.asarray(x).astype(dtype)
        start = x[0, 0]
        plan = planned(lambda x: lax.reduce(x, start, fn, (0,)), x)
        (moved,) = plan.collectives
        assert (moved.kind, moved.dtype) == ("all_reduce", TRAVEL[dtype])
        assert moved.bytes == 8 * {"i64": 8, "i32": 4, "i16": 2}.get(moved.dtype, 1)
        runs_as_the_original(plan, x)


def test_a_sharded_extreme_is_reduced_and_scattered():
    """As integers, unlike the sum beside it."""

    def fn(x):
        return jnp.max(x, 0), jnp.sum(x, 0)

    x = numbers().reshape(8, 8)
    tactics = [
        pt.ManualPartition({"x": 0}, axis="x"),
        pt.ManualPartition({"result[0]": 0, "result[1]": 0}, axis="x"),
    ]
    plan = pt.plan(fn, x, mesh=MESH, hardware="cpu", tactics=tactics)
    assert {(c.kind, c.dtype) for c in plan.collectives} == {
        ("reduce_scatter", "i32"),
        ("reduce_scatter", "f32"),
    }
    runs_as_the_original(plan, x)
    x[7, 0], x[2, 7] = np.nan, np.nan
    same(plan.jit()(*plan.shard(x)), fn(x))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_narrow_floats_keep_nan(dtype):
    def fn(x):
        return lax.reduce(x, dtype(-9), lax.max, (0,)), lax.reduce(x, dtype(9), lax.min, (0,))

    x = jnp.asarray(np.arange(64).reshape(8, 8) % 13 - 6, dtype)
    plan = planned(fn, x)
    for device in range(8):
        special = x.at[device, 1].set(jnp.nan).at[device, 2].set(-jnp.nan)
        same(plan.jit()(*plan.shard(special)), jax.jit(fn)(special))
