"""A batch that is split stays so beside single numbers, and beside what is equal everywhere."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import array, planner

plan = planner(mesh="data=4", tactics=[pt.ManualPartition({"x": 0}, axis="data")])

BY_NUMBER = {
    "select": lambda x, s: lax.select(s > 0, x, -x),
    "where": lambda x, s: jnp.where(s > 0, x, -x),
    "clamp": lambda x, s: lax.clamp(-s, x, s),
    "pad": lambda x, s: lax.pad(x, s, ((0, 0, 0), (1, 1, 0))),
    "start of a reduction": lambda x, s: lax.reduce(x, s, lax.max, (1,)),
    "branches": lambda x, s: lax.cond(s > 0, lambda x: x * 2, lambda x: x + 1, x),
    "filled": lambda x, s: x + jnp.full(x.shape, s),
    "concatenated": lambda x, s: jnp.concatenate([x, jnp.full((16, 1), s)], 1),
    "stacked": lambda x, s: jnp.stack([x, jnp.full(x.shape, s)], 1),
    "sorted with": lambda x, s: lax.sort((x, jnp.full(x.shape, s)), dimension=1)[0],
    "mask": lambda x, s: jnp.where(jax.random.bernoulli(jax.random.key(0), s, x.shape), x, 0),
    "made along the batch": lambda x, s: x + jnp.linspace(0, 1, 16)[:, None] * s,
    "polynomial": lambda x, s: jnp.polyval(jnp.stack([s, s]), x),
}

BY_INDEX = {
    "window": lambda x, i: lax.dynamic_slice(x, (0, i), (16, 3)),
    "window written": lambda x, i: lax.dynamic_update_slice(x, jnp.ones((16, 2)), (0, i)),
    "column": lambda x, i: x[:, i],
    "column set": lambda x, i: x.at[:, i].set(1.0),
    "column added to": lambda x, i: x.at[:, i].add(x[:, 0]),
    "taken along": lambda x, i: jnp.take_along_axis(x, jnp.full((16, 1), i), 1),
    "loop": lambda x, i: lax.fori_loop(0, i, lambda _, x: x * 2, x),
    "branch of several": lambda x, i: lax.switch(i, [lambda x: x, lambda x: x * 2], x),
    "one hot": lambda x, i: x * jax.nn.one_hot(i, 8),
    "rolled": lambda x, i: jnp.roll(x, i, axis=1),
    "each written": lambda x, i: jax.vmap(
        lambda row: lax.dynamic_update_slice(row, jnp.ones(2), (i,))
    )(x),
}

CASES = [(name, fn, jnp.float32) for name, fn in BY_NUMBER.items()] + [
    (name, fn, jnp.int32) for name, fn in BY_INDEX.items()
]


@pytest.mark.parametrize(("fn", "dtype"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_nothing_is_gathered_because_a_single_number_counts(fn, dtype):
    p = plan(lambda x, s: fn(x, s), array(16, 8), array(dtype=dtype))
    assert not p.collectives
    assert p.out_shardings == jax.P("data")
