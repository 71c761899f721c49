"""Reductions over devices: what they start from counts once, whatever combines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt

X = np.arange(64, dtype=np.float32) % 7 - 2
FORMS = ("partitioned", "annotated")


def planned(fn, *args):
    """All arguments sharded on their first dimension."""
    tactic = pt.ManualPartition({value: 0 for value in "xy"[: len(args)]}, axis="x")
    named = {1: lambda x: fn(x), 2: lambda x, y: fn(x, y)}[len(args)]
    return pt.plan(named, *args, mesh="x=8", hardware="cpu", tactics=[tactic])


def run(plan, *args, form="partitioned"):
    return plan.lower(form=form).compile()(*plan.shard(*args))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize(
    ("combine", "start", "all_of"),
    [(lax.add, 3, np.sum), (lax.mul, 2, np.prod), (lax.max, 90, np.max), (lax.min, -90, np.min)],
)
def test_a_start_counts_once(combine, start, all_of, rows, form):
    """Also where a shard is a single element. XLA counts it more often on a single host device."""
    x = np.tile(np.float32([[1, 2], [3, 1]]), (rows // 2, 1))[:, :1]
    plan = planned(lambda x: lax.reduce(x, np.float32(start), combine, (0,)), x)
    assert [c.kind for c in plan.collectives] == ["all_reduce"]
    want = all_of(np.concatenate([x, [[start]]]), axis=0)
    np.testing.assert_allclose(run(plan, x, form=form), want, rtol=1e-6)


def both(first, second):
    return lambda a, b: (first(a[0], b[0]), second(a[1], b[1]))


def larger(a, b):
    """The larger number with its place: the first one, if they are equal."""
    first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return lax.select(first, a[0], b[0]), lax.select(first, a[1], b[1])


PLACES = np.arange(64, dtype=np.float32)
LONG = np.tile(X, 4096)
"""So long that two exchanges with neighbours take less time than gathering it."""
SEVERAL = {
    "sums": (both(lax.add, lax.add), (3, 5), (X.sum() + 3, PLACES.sum() + 5)),
    "an extreme and a sum": (both(lax.max, lax.add), (90, 5), (90, PLACES.sum() + 5)),
    "an extreme and a product": (both(lax.min, lax.mul), (-90, 5), (-90, 0)),
    "the largest and its place": (larger, (-9, 99), (4, 6)),
    "a start that is the largest": (larger, (90, 99), (90, 99)),
    "what is not known": (lambda a, b: (a[0] + b[0], a[1] + b[1] + 0 * a[0]), (3, 5), None),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_starts_of_several_reductions_together_count_once(name):
    """Part by part first, and then the parts, where the parts can start from nothing."""
    body, starts, want = SEVERAL[name]
    starts = tuple(map(np.float32, starts))
    plan = planned(lambda x, places: lax.reduce((x, places), starts, body, (0,)), X, PLACES)
    parted = [op.short for op in plan.program.operations].count("reduce") == 2
    assert parted == (want is not None)
    want = want or (X.sum() + 3, PLACES.sum() + 5)
    np.testing.assert_allclose(run(plan, X, PLACES), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("combine", "start"),
    [(lax.add, 3.0), (lax.mul, 2.0), (lax.max, 3.0), (lax.min, -3.0), (lax.max, -np.inf)],
)
def test_beyond_the_ends_windows_read_nothing(combine, start):
    """A start that is not neutral counts once in every window, as in the original."""

    def fn(x):
        return lax.reduce_window(x, start, combine, (3,), (1,), "SAME")

    plan = planned(fn, LONG)
    assert {c.kind for c in plan.collectives} == {"collective_permute"}
    np.testing.assert_allclose(run(plan, LONG), jax.jit(fn)(LONG), rtol=1e-6)


def test_several_windows_together():
    def fn(x, y):
        body = both(lax.add, lax.max)
        return lax.reduce_window((x, y), (2.0, 3.0), body, (3,), (1,), "SAME")

    plan = planned(fn, LONG, -LONG)
    assert {c.kind for c in plan.collectives} == {"collective_permute"}
    for ours, theirs in zip(run(plan, LONG, -LONG), jax.jit(fn)(LONG, -LONG), strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_windows_of_another_kind_are_gathered_where_they_overhang():
    """It is not known what to put beyond the ends."""

    def fn(x):
        return lax.reduce_window(x, 3.0, lambda a, b: a + b + 0 * a, (3,), (1,), "SAME")

    plan = planned(fn, X)
    assert [c.kind for c in plan.collectives] == ["all_gather"]
    np.testing.assert_allclose(run(plan, X), jax.jit(fn)(X))


# --------------------------------------------------------------------------- at places

SEGMENTS = 16
PLACE = np.arange(64) * 5 % SEGMENTS
AT = {
    "segment_max": lambda x: jax.ops.segment_max(x, PLACE, SEGMENTS),
    "segment_min": lambda x: jax.ops.segment_min(x, PLACE, SEGMENTS),
    "segment_sum": lambda x: jax.ops.segment_sum(x, PLACE, SEGMENTS),
    "segment_prod": lambda x: jax.ops.segment_prod(x, PLACE, SEGMENTS),
    "max": lambda x: jnp.full(SEGMENTS, 2.5).at[PLACE].max(x),
    "min": lambda x: jnp.full(SEGMENTS, 0.5).at[PLACE].min(x),
    "add": lambda x: jnp.full(SEGMENTS, 0.5).at[PLACE].add(x),
    "multiply": lambda x: jnp.full(SEGMENTS, 0.5).at[PLACE].multiply(x),
    "max of whole numbers": lambda x: jnp.full(SEGMENTS, 2).at[PLACE].max(x.astype(int)),
    "some of booleans": lambda x: jnp.zeros(SEGMENTS, bool).at[PLACE].max(x > 3),
    "all of booleans": lambda x: jnp.ones(SEGMENTS, bool).at[PLACE].min(x > 3),
}


@pytest.mark.parametrize("name", AT)
def test_what_falls_to_one_place_on_several_devices_is_combined(name):
    """Locally first; then one collective of the size of the result, not of what is scattered."""

    def fn(x):
        return AT[name](x)

    plan = planned(fn, X)
    (moved,) = plan.collectives
    made = jax.eval_shape(fn, X)
    assert (moved.kind, moved.bytes) == ("all_reduce", made.size * made.dtype.itemsize)
    for form in FORMS:
        np.testing.assert_allclose(run(plan, X, form=form), jax.jit(fn)(X), rtol=1e-5)


@pytest.mark.parametrize("name", AT)
def test_where_the_result_is_sharded_each_device_gets_its_shard(name):
    def fn(x):
        return AT[name](x)

    tactics = [pt.ManualPartition({name: 0}, axis="x") for name in ("x", "result")]
    plan = pt.plan(fn, X, mesh="x=8", hardware="cpu", tactics=tactics)
    assert [c.kind for c in plan.collectives] == ["reduce_scatter"]
    np.testing.assert_allclose(run(plan, X), jax.jit(fn)(X), rtol=1e-5)


def test_the_largest_of_many_segments():
    """The case of 262,144 bytes gathered for a result of 512."""
    x = np.random.default_rng(0).standard_normal((65536,), dtype=np.float32)
    places = np.random.default_rng(1).integers(0, 128, 65536)

    def fn(x, places):
        return jax.ops.segment_max(x, places, num_segments=128)

    plan = planned(fn, x, places)
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", 512)]
    np.testing.assert_array_equal(run(plan, x, places), jax.jit(fn)(x, places))


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x[np.array([3, 0, 3])],
        lambda x: x[3],
        lambda x: x.at[np.array([2])].set(x[:1]),
    ],
    ids=["look-up", "index", "scatter"],
)
def test_what_has_no_zero_is_not_added_to_zeros(take):
    """Of float8_e8m0fnu, powers of two, the smallest number is no zero: twice it is another."""
    x = np.full((8, 4), 2.0**-127, np.float32).astype(jnp.float8_e8m0fnu)
    rows = pt.ManualPartition({"x": 0}, axis="a")
    made = pt.plan(lambda x: take(x), x, mesh="a=4", hardware="cpu", tactics=rows)
    ours, theirs = made.jit()(x), take(jnp.asarray(x))
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_parts_of_a_sum_are_not_converted_to_what_has_no_zero():
    """Of an index that one device has, the others have zeros: converted, these are NaN."""
    x = 2.0 ** np.arange(32, dtype=np.float32).reshape(8, 4) - 9

    def fn(x):
        return x[3].astype(jnp.float8_e8m0fnu)

    made = pt.plan(
        fn, x, mesh="a=4", hardware="cpu", tactics=pt.ManualPartition({"x": 0}, axis="a")
    )
    np.testing.assert_array_equal(np.asarray(made.jit()(x)), np.asarray(fn(jnp.asarray(x))))
