"""Windows at places that are known only at run time, along a sharded dimension.

What is written goes to the devices that hold it; of what is read, each device contributes what it
holds. Neither gathers the array.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import runs_as_the_original

ROWS, WIDTH, BATCH = 16, 8, 4


def numbers(*shape):
    return (np.arange(np.prod(shape)).reshape(shape) % 23 - 7).astype(np.float32)


def planned(fn, *args, tiled):
    tactics = [pt.ManualPartition({"x": dim}, axis) for dim, axis in tiled]
    return pt.plan(fn, *args, mesh="a=4,b=2", hardware="cpu", tactics=tactics)


X = numbers(ROWS, WIDTH)
BATCHED = numbers(BATCH, ROWS, WIDTH)
STARTS = (-3, 0, 2, 3, 7, 11, 13, 15, 16, 40)
"""Where windows begin: at the ends of shards, across them, and where they do not fit."""

# --------------------------------------------------------------------------- writes


def starting(batch=(), dtype=np.int32):
    """All starts, for each of a batch in another order."""
    for number, start in enumerate(STARTS):
        if np.issubdtype(dtype, np.unsignedinteger) and start < 0:
            continue
        others = [STARTS[(number + 3 * k) % len(STARTS)] for k in range(1, BATCH)]
        yield np.asarray([start, *others] if batch else start).astype(dtype)


def update(x, u, i):
    return lax.dynamic_update_slice(x, u, (i, jnp.zeros_like(i)))


def columns_too(x, u, i):
    return lax.dynamic_update_slice(x, u, (i, i))


def each(fn):
    return lambda x, u, i: jax.vmap(fn)(x, u, i)


def at(method):
    """A scatter of one window, which is dropped if it does not fit."""
    numbers = lax.ScatterDimensionNumbers((0, 1), (), (0,))
    return lambda x, u, i: method(x, i[None], u, numbers)


WRITES = {
    "update": update,
    "set": at(lax.scatter),
    "add": at(lax.scatter_add),
    "multiply": at(lax.scatter_mul),
    "max": at(lax.scatter_max),
    "min": at(lax.scatter_min),
}


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 15, ROWS])
@pytest.mark.parametrize("name", WRITES)
def test_several_rows_are_written_where_they_are_held(name, rows):
    """Into shards of four rows."""
    fn, u = WRITES[name], numbers(rows, WIDTH) * 3 + 1
    plan = planned(lambda x, u, i: fn(x, u, i), X, u, np.int32(0), tiled=[(0, "a")])
    assert not plan.collectives
    run, original = plan.jit(), jax.jit(fn)
    for start in starting():
        np.testing.assert_array_equal(run(*plan.shard(X, u, start)), original(X, u, start))


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("name", WRITES)
def test_several_rows_of_each_of_a_batch(name, rows):
    """As a prompt is written into a cache, at another place for each of a batch."""
    fn, u = each(WRITES[name]), numbers(BATCH, rows, WIDTH) * 3 + 1
    args = BATCHED, u, np.zeros(BATCH, np.int32)
    plan = planned(lambda x, u, i: fn(x, u, i), *args, tiled=[(1, "a"), (0, "b")])
    assert not plan.collectives
    run, original = plan.jit(), jax.jit(fn)
    for starts in starting((BATCH,)):
        ours = run(*plan.shard(BATCHED, u, starts))
        np.testing.assert_array_equal(ours, original(BATCHED, u, starts))


@pytest.mark.parametrize("columns", [3, 1])
@pytest.mark.parametrize("batched", [False, True])
def test_windows_along_two_sharded_dimensions(batched, columns):
    """Several indices wide along one or both of them: the rest is written as it was."""
    fn, u = columns_too, numbers(3, columns) * 3 + 1
    x, i, dim = X, np.int32(0), 0
    if batched:
        fn, u, x = each(fn), np.stack([u] * BATCH), BATCHED
        i, dim = np.zeros(BATCH, np.int32), 1
    plan = planned(lambda x, u, i: fn(x, u, i), x, u, i, tiled=[(dim, "a"), (dim + 1, "b")])
    assert not plan.collectives
    run, original = plan.jit(), jax.jit(fn)
    for start in starting((BATCH,) if batched else ()):
        np.testing.assert_array_equal(run(*plan.shard(x, u, start)), original(x, u, start))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.int64])
def test_places_of_any_integer_type(dtype):
    with jax.enable_x64(dtype == np.int64):
        u = numbers(3, WIDTH) * 3 + 1
        plan = planned(update, X, u, dtype(0), tiled=[(0, "a")])
        run, original = plan.jit(), jax.jit(update)
        for start in starting(dtype=dtype):
            np.testing.assert_array_equal(run(*plan.shard(X, u, start)), original(X, u, start))


def test_places_beyond_what_a_signed_integer_holds():
    u = numbers(3, WIDTH)
    plan = planned(update, X, u, np.uint32(0), tiled=[(0, "a")])
    start = np.uint32(2**31 + 5)
    np.testing.assert_array_equal(plan.jit()(X, u, start), jax.jit(update)(X, u, start))


AT_FIXED_PLACES = {
    "set": lambda x, u: x.at[3:13].set(1.5),
    "add": lambda x, u: x.at[3:13].add(u),
    "multiply": lambda x, u: x.at[:, 2:5].multiply(3.0),
    "max": lambda x, u: x.at[3:13, 2:5].max(4.0),
    "one row": lambda x, u: x.at[3].set(u),
    "one column": lambda x, u: x.at[:, 5].add(2.0),
    "the last row": lambda x, u: x.at[-1:].set(u),
    "every second row": lambda x, u: x.at[1:9:2].add(u),
}


@pytest.mark.parametrize("name", AT_FIXED_PLACES)
def test_writes_at_fixed_places_move_nothing(name):
    def fn(x, u):
        return AT_FIXED_PLACES[name](x, u)

    plan = planned(fn, X, numbers(WIDTH), tiled=[(0, "a"), (1, "b")])
    assert not plan.collectives
    runs_as_the_original(plan, X, numbers(WIDTH))


def test_a_prompt_and_then_tokens_into_a_cache_that_is_sharded_by_position():
    """Nothing of the cache is gathered, in a loop neither."""

    def serve(x, prompt, tokens, lengths):
        cache = jax.vmap(lambda c, p: lax.dynamic_update_slice(c, p, (0, 0)))(x, prompt)

        def step(i, cache):
            new = tokens[:, i][:, None]
            return jax.vmap(lambda c, t, n: lax.dynamic_update_slice(c, t, (n, 0)))(
                cache, new, lengths + i
            )

        return lax.fori_loop(0, 3, step, cache)

    args = (
        BATCHED,
        -numbers(BATCH, 6, WIDTH),
        100 * numbers(BATCH, 3, WIDTH),
        np.array([6, 3, 4, 7], np.int32),
    )
    plan = planned(serve, *args, tiled=[(1, "a")])
    assert not plan.collectives
    runs_as_the_original(plan, *args)


def test_windows_that_may_overlap_are_not_written_by_halves():
    """What one leaves as it was, another may have changed."""
    numbers_of = lax.ScatterDimensionNumbers((1, 2), (), (0,))

    def fn(x, u, i):
        return lax.scatter(x, i[:, None], u, numbers_of)

    args = X, numbers(2, 3, WIDTH), np.array([2, 4], np.int32)
    plan = planned(fn, *args, tiled=[(0, "a")])
    assert "all_gather" in {c.kind for c in plan.collectives}
    runs_as_the_original(plan, *args)


def test_one_row_windows_may_overlap():
    numbers_of = lax.ScatterDimensionNumbers((1, 2), (), (0,))

    def fn(x, u, i):
        return lax.scatter_add(x, i[:, None], u, numbers_of)

    args = X, numbers(3, 1, WIDTH), np.array([2, 2, 14], np.int32)
    plan = planned(fn, *args, tiled=[(0, "a")])
    assert not plan.collectives
    runs_as_the_original(plan, *args)


# --------------------------------------------------------------------------- reads

ONE_ROW = {
    "x[i]": (lambda x, i: x[i[0]], 1),
    "a slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i[0], 1), 1),
    "rows one by one": (lambda x, i: jax.vmap(lambda j: lax.dynamic_slice_in_dim(x, j, 1))(i), 4),
    "look-ups that keep the dimension": (
        lambda x, i: lax.gather(
            x, i[:, None], lax.GatherDimensionNumbers((1, 2), (), (0,)), (1, WIDTH)
        ),
        4,
    ),
    "one element of each column": (
        lambda x, i: jnp.take_along_axis(x, jnp.tile(i[:1], (1, WIDTH)), 0),
        1,
    ),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_one_row_is_summed_up_over_devices(name):
    fn, rows = ONE_ROW[name]
    args = X, np.array([5, 0, 15, 40], np.int32)
    plan = planned(lambda x, i: fn(x, i), *args, tiled=[(0, "a")])
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", 4 * rows * WIDTH)]
    runs_as_the_original(plan, *args)


def test_one_row_of_each_of_a_batch():
    def fn(x, i):
        return jax.vmap(lambda rows, at: lax.dynamic_slice_in_dim(rows, at, 1))(x, i)

    args = BATCHED, np.array([5, 0, 15, 40], np.int32)
    plan = planned(fn, *args, tiled=[(1, "a"), (0, "b")])
    (moved,) = plan.collectives
    assert (moved.kind, moved.axes, moved.bytes) == ("all_reduce", ("a",), 4 * 2 * WIDTH)
    runs_as_the_original(plan, *args)
