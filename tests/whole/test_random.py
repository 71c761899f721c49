"""Random numbers: a partitioned program draws those that the original draws.

Exact: each number depends on the key and on its place in the whole, not on the device. With the
threefry generator every device makes its own piece; generators that are one operation (rbg,
unsafe_rbg) make the whole on every device, which keeps its piece.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.verify import compare

IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
MESH = "data=4,model=2"
ROWS = [pt.ManualPartition({"x": 0}, axis="data"), pt.ManualPartition({"x": 1}, axis="model")]


def numbers(key, x):
    """Draws of every kind, of the shape of `x` and used with it, so that they are sharded alike."""
    keys = jax.random.split(key, 6)
    return {
        "normal": x + jax.random.normal(keys[0], x.shape),
        "uniform": x * jax.random.uniform(keys[1], x.shape),
        "randint": jax.random.randint(keys[2], x.shape, 0, 9),
        "permutation": jax.random.permutation(keys[3], x),
        "categorical": jax.random.categorical(keys[4], x),
        "folded": jax.random.bits(jax.random.fold_in(keys[5], 3), x.shape),
    }


def dropout(key, x):
    """Loss and gradient of a layer with dropout; the key for the next step."""
    key, here = jax.random.split(key)

    def loss(x):
        kept = jax.random.bernoulli(here, 0.5, x.shape)
        return jnp.sum(jnp.where(kept, 2 * x, 0.0) ** 2)

    return key, *jax.value_and_grad(loss)(x)


def one_key_for_each_row(key, x):
    return jax.vmap(lambda k, row: row + jax.random.normal(k, row.shape))(
        jax.random.split(key, x.shape[0]), x
    )


def raw(array):
    typed = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if typed else array)


def assert_equal(ours, theirs):
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        np.testing.assert_allclose(raw(mine), raw(their), rtol=1e-5, atol=1e-6)


@pytest.fixture
def x():
    return jnp.arange(16 * 8, dtype=jnp.float32).reshape(16, 8) / 128


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("fn", "typed"),
    [(numbers, True), (dropout, True), (dropout, False), (one_key_for_each_row, False)],
    ids=["numbers", "dropout", "dropout, raw key", "rows, raw key"],
)
def test_the_numbers_of_the_original_are_drawn(x, fn, implementation, typed):
    with jax.default_prng_impl(implementation):
        key = (jax.random.key if typed else jax.random.PRNGKey)(7)
        plan = pt.plan(fn, key, x, mesh=MESH, hardware="cpu", tactics=ROWS)
        placed = plan.shard(key, x)
        compiled = plan.jit().lower(*placed).compile()
        assert_equal(compiled(*placed), jax.jit(fn)(key, x))
    assert compare(plan.collectives, plan.mesh, compiled.as_text()).equal


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_drawing_what_is_sharded_moves_nothing(x, implementation):
    def noisy(key, x):
        return x + jax.random.uniform(key, x.shape)

    key = jax.random.key(0, impl=implementation)
    plan = pt.plan(noisy, key, x, mesh=MESH, hardware="cpu", tactics=ROWS)
    assert not plan.collectives
    assert plan.out_shardings == jax.sharding.PartitionSpec("data", "model")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_key_in_the_state_is_split_each_step(x, implementation):
    def step(state, x):
        key, here = jax.random.split(state["key"])
        noise = jax.random.normal(here, x.shape)
        return {"key": key, "w": state["w"] - 0.1 * jnp.mean(x * noise, 0)}

    def initial():
        return {"key": jax.random.key(3, impl=implementation), "w": jnp.ones(8)}

    ours, theirs = initial(), initial()
    plan = pt.plan(step, ours, x, mesh=MESH, hardware="cpu", tactics=ROWS, donate_argnums=0)
    run, original = plan.jit(), jax.jit(step)
    for _ in range(3):
        ours, theirs = run(ours, x), original(theirs, x)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_array_of_keys_can_be_sharded(x, implementation):
    def drawn(keys, x):
        return jax.vmap(lambda k, row: row + jax.random.normal(k, row.shape))(keys, x)

    keys = jax.random.split(jax.random.key(1, impl=implementation), 16)
    tactic = pt.ManualPartition({"keys": 0, "x": 0}, axis="data")
    plan = pt.plan(drawn, keys, x, mesh=MESH, hardware="cpu", tactics=[tactic])
    assert plan.in_shardings[0] == jax.sharding.PartitionSpec("data")
    assert_equal(plan.jit()(keys, x), jax.jit(drawn)(keys, x))
