"""Operations that move elements along a sharded dimension: devices exchange what they lack.

Everything runs and is compared with the original; the collectives are those that XLA compiles.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import numbers, planner, runs_as_the_original

ROW = 1024 * 4
X = numbers(64, 1024)
"""Along the first dimension 4 devices have 16 rows each."""

plan = planner(mesh="x=4", tactics=[pt.ManualPartition({"x": 0}, "x")])


def moved(made):
    """What is exchanged: kind and number of rows, in order."""
    rows = [(c.kind, c.bytes // ROW if c.bytes % ROW == 0 else c.bytes) for c in made.collectives]
    return [(kind.replace("collective_", ""), count) for kind, count in rows]


def checked(fn, x=X, **options):
    return moved(runs_as_the_original(plan(fn, x, **options), x))


def gradient(fn):
    return lambda x: jax.grad(lambda x: jnp.mean(jnp.sin(fn(x))))(x)


ONE = [("permute", 1)]
SHARD = [("permute", 16)]
HALF = [("permute", 8), ("permute", 8)]
TWO = [("permute", 2)]

MOVES = {
    # what is done, what is exchanged for it, and for its gradient, which goes back
    "roll": (lambda x: jnp.roll(x, 1, 0), ONE, 2 * ONE),
    "roll back": (lambda x: jnp.roll(x, -3, 0), [("permute", 3)], 2 * [("permute", 3)]),
    "roll by a shard": (lambda x: jnp.roll(x, 16, 0), SHARD, 2 * SHARD),
    "roll by several": (lambda x: jnp.roll(x, 35, 0), [("permute", 13), ("permute", 3)], None),
    "halves that change places": (lambda x: jnp.concatenate([-x[32:], x[:32]]), SHARD, 2 * SHARD),
    "reversal": (lambda x: x[::-1], SHARD, 2 * SHARD),
    "shift": (lambda x: jnp.concatenate([jnp.zeros((1, 1024)), x[:-1]]), ONE, 2 * ONE),
    "shift back": (lambda x: jnp.concatenate([x[1:], jnp.ones((1, 1024))]), ONE, 2 * ONE),
    "shift at an edge": (lambda x: jnp.concatenate([x[:1], x[:-1]]), ONE, 2 * ONE),
    "padding that shifts": (lambda x: lax.pad(x, 1.0, ((-2, 2, 0), (0, 0, 0))), TWO, 2 * TWO),
    "padding between": (lambda x: lax.pad(x, 1.0, ((1, 0, 1), (0, 0, 0))), [], []),
    "longer padding": (lambda x: jnp.pad(x, ((0, 64), (0, 0))), 2 * SHARD, None),
    "every second": (lambda x: x[1::2], [], []),
    "first half": (lambda x: x[:32], HALF, None),
    "in the middle": (lambda x: x[16:48], [("permute", 8)], None),
    "concatenation": (lambda x: jnp.concatenate([x, x * 2]), 4 * SHARD, None),
    "one row": (lambda x: x[5], [("all_reduce", 1)], None),
    "cumulative sum": (lambda x: jnp.cumsum(x, 0), [("all_gather", 4)], 2 * [("all_gather", 4)]),
    "from the end": (lambda x: lax.cumsum(x, 0, reverse=True), [("all_gather", 4)], None),
    "cumulative product": (lambda x: jnp.cumprod(x / 2 + 1, 0), [("all_gather", 4)], None),
    "cumulative maximum": (lambda x: lax.cummax(x, 0), [("all_gather", 4)], None),
    "cumulative minimum": (lambda x: lax.cummin(x, 0), [("all_gather", 4)], None),
    "cumulative log-sum-exp": (lambda x: lax.cumlogsumexp(x, 0), [("all_gather", 4)], None),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_devices_exchange_what_they_lack(name):
    fn, forward, backward = MOVES[name]
    assert checked(lambda x: fn(x)) == forward
    if backward is not None:
        assert checked(gradient(fn)) == backward


def total(terms):
    return lambda x: jnp.mean(terms(x) ** 2)


DIFFERENCES = {
    "of neighbours": (lambda x: jnp.diff(x, axis=0), ONE),
    "absolute": (lambda x: jnp.abs(x[1:] - x[:-1]), ONE),
    "second ones": (lambda x: x[2:] - 2 * x[1:-1] + x[:-2], [("permute", 1), ("permute", 2)]),
    "accumulated": (lambda x: jnp.cumsum(x[1:] * x[:-1], 0), [*ONE, ("all_gather", 4)]),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_of_differences_a_row_or_two_is_exchanged_although_they_are_one_less(name):
    terms, rows = DIFFERENCES[name]
    assert checked(total(terms)) == [*rows, ("all_reduce", 4)]


@pytest.mark.parametrize(("low", "high"), [(0, -1), (-1, 0), (-1, -1)])
def test_rows_may_be_left_out_of_what_is_a_part_along_another_dimension(low, high):
    def loss(x):
        right = jnp.split(x, 2, axis=1)[1]
        return jnp.sum(lax.pad(right, jnp.float32(0), [(low, high, 0), (0, 0, 0)]) ** 2)

    args = (numbers(16, 2),)
    tactics = [pt.ManualPartition({"x": 0}, axis="x")]
    plan = pt.plan(jax.grad(loss), *args, mesh="x=4", hardware="cpu", tactics=tactics)
    runs_as_the_original(plan, *args)


def test_the_gradient_of_a_difference_goes_the_same_way_back():
    assert checked(jax.value_and_grad(total(DIFFERENCES["of neighbours"][0]))) == [
        ("permute", 1),
        ("all_reduce", 4),
        ("permute", 1),
    ]


def test_what_is_returned_one_row_shorter_is_gathered_after_it_was_made():
    """Nothing divides 63 rows; they stay as they were written."""
    assert checked(lambda x: x[1:] - x[:-1]) == [("all_gather", 64)]


def test_an_associative_scan_exchanges_a_row_at_each_level():
    """Once a level has a row for each device, the rest is done by all of them."""
    forward = checked(lambda x: lax.associative_scan(jnp.multiply, x / 2 + 1))
    assert forward == [("all_gather", 4), *[("all_reduce", 1)] * 2, *[("permute", 1)] * 4]


def test_a_dimension_may_be_split_along_two_axes():
    both = [pt.ManualPartition({"x": 0}, axis) for axis in ("x", "y")]
    made = plan(lambda x: jnp.roll(x, 1, 0), X, mesh="x=2,y=2", tactics=both)
    assert moved(runs_as_the_original(made, X)) == ONE
    assert made.collectives[0].group == 4


def test_corners_of_what_is_rolled_in_two_dimensions_come_along():
    both = [pt.ManualPartition({"x": 0}, "x"), pt.ManualPartition({"x": 1}, "y")]
    made = plan(lambda x: jnp.roll(x, (1, -1), (0, 1)), X, mesh="x=2,y=2", tactics=both)
    assert [c.kind for c in runs_as_the_original(made, X).collectives] == ["collective_permute"] * 2


def test_sizes_that_divide_less_well_split_along_fewer_axes():
    """What 4 does not divide may still be split in 2."""
    assert checked(lambda x: x[:40]) == [("permute", 10), ("permute", 2)]
    assert checked(lambda x: x[:42] * 2, mesh="x=2") == [("permute", 11)]
    assert checked(lambda x: x[:42] * 2) == [("all_gather", 64)]


def test_where_it_is_less_all_is_gathered():
    small = np.ones((8, 1), np.float32)
    made = plan(lambda x: jnp.concatenate([x, x * 2]), small, hardware="cpu")
    assert {c.kind for c in runs_as_the_original(made, small).collectives} == {"all_gather"}


def test_a_plan_without_sharding_runs_as_it_was_written():
    made = pt.plan(lambda x: jnp.roll(x, 1, 0), X, mesh="x=1", hardware="cpu", tactics=[])
    runs_as_the_original(made, X)
    annotated = plan(lambda x: jnp.roll(x, 1, 1), X)
    assert not runs_as_the_original(annotated, X).collectives


def test_core_runs_what_is_moved_on_one_device():
    def fn(x):
        return jnp.roll(x, 1, 0), x[::-1], x[16:48], lax.pad(x, 1.0, ((-2, 2, 0), (0, 0, 0)))

    small = X[:, :4]
    made = plan(fn, small)
    jax.tree.map(np.testing.assert_array_equal, made.core.run(small), jax.jit(fn)(small))


# ------------------------------------------------------------------------------ a pipeline

STAGES, BATCHES = 4, 16


def pipeline(w, batches):
    """As it is written over a dimension of stages: all of them work, then all hand over."""

    def tick(state, batch):
        state = jnp.roll(state, 1, 0).at[0].set(batch)
        state = jax.vmap(lambda w, x: jnp.tanh(x @ w))(w, state)
        return state, state

    idle = jnp.zeros((STAGES - 1, *batches.shape[1:]), batches.dtype)
    start = jnp.zeros((STAGES, *batches.shape[1:]), batches.dtype)
    _, made = lax.scan(tick, start, jnp.concatenate([batches, idle]))
    return made[STAGES - 1 :, -1]


def test_stages_of_a_pipeline_hand_over_one_shard_in_every_tick():
    w, batches = numbers(STAGES, 32, 32) / 8, numbers(BATCHES, 8, 32)
    stages = pt.ManualPartition({"w": 0}, "stage")
    made = plan(pipeline, w, batches, mesh="stage=4", hardware="cpu", tactics=[stages])
    runs_as_the_original(made, w, batches)
    (handed,) = (c for c in made.collectives if c.kind == "collective_permute")
    assert handed.bytes == batches[0].nbytes  # one shard
    assert handed.count == BATCHES + STAGES - 1  # in each tick
    others = [c for c in made.collectives if c is not handed]
    assert [(c.kind, c.count) for c in others] == [("all_reduce", 1)]  # what the last stage made
