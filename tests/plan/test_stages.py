"""The largest few along a sharded dimension: found part by part, then among what was found."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from partita.verify import compare

X = np.random.default_rng(0).integers(-40, 40, (4, 256)).astype(np.float32)  # many ties
X[0, 5] = np.nan
X[1] = 3
SPLIT = [pt.ManualPartition({"x": 1}, axis=axis) for axis in "xy"]


def planned(fn, tactics=SPLIT):
    return pt.plan(fn, X, mesh="x=4,y=2", hardware="cpu", tactics=tactics)


def argmax(x):
    return jnp.argmax(x, axis=1)


def argmin(x):
    return jnp.argmin(x.T, axis=0)


def top_4(x):
    return lax.top_k(x, 4)


def gradient(x):
    return jax.grad(lambda x: lax.top_k(x, 4)[0].sum())(x)


def decoding(x):
    return lax.fori_loop(0, 3, lambda i, at: at + argmax(x * at[:, None]), jnp.ones(4, jnp.int32))


@pytest.mark.parametrize("fn", [argmax, argmin, top_4, gradient, decoding])
def test_only_the_best_of_every_part_travel(fn):
    plan = planned(fn)
    placed = plan.shard(X)
    compiled = plan.jit().lower(*placed).compile()
    comparison = compare(plan.collectives, plan.mesh, compiled.as_text())
    assert comparison.equal, f"\n{comparison}"
    for mine, theirs in zip(
        jax.tree.leaves(compiled(*placed)), jax.tree.leaves(jax.jit(fn)(X)), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)  # ties fall as in the original
    assert plan.collectives
    assert all(c.bytes <= X.nbytes / 8 for c in plan.collectives)


def test_a_dimension_that_hardly_shrinks_is_left_as_it_is():
    plan = planned(lambda x: lax.top_k(x, 64))
    assert [op.short for op in plan.program.operations] == ["top_k"]
    assert [c.bytes for c in plan.collectives] == [X.nbytes]


def test_sums_need_no_stages():
    plan = planned(lambda x: (x.sum(1), x.max(1)))
    assert all(op.short != "reshape" for op in plan.program.operations)
