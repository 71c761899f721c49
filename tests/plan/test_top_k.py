"""The largest few along a sharded dimension: found part by part, then among what was found."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

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


def test_what_is_known_of_arguments_and_results_stays_known():
    """Drawing categories from keys takes the largest, so it is read again, split."""

    def draw(keys, logits, counts):
        drawn = jax.vmap(jax.random.categorical)(keys, logits)
        return keys, counts + drawn

    keys = jax.random.split(jax.random.key(0), 8)
    logits = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    counts = np.zeros(8, np.int32)
    plan = pt.plan(
        draw, keys, logits, counts, mesh="x=2", hardware="cpu", donate_argnums=2,
        tactics=[
            pt.ManualPartition({"logits": 1}, axis="x"),
            pt.ManualPartition({"keys": 1}, axis="x"),
        ],
    )  # fmt: skip
    program = plan.program
    assert any(op.short == "reshape" for op in program.operations)  # it is split
    assert program.keys == {program.arguments[0], program.results[0]}
    assert program.aliases == {2: 1}
    (refusal,) = plan.history[1].refused
    assert refusal.reason == "the words of a random key stay together"
    same, counted = plan.jit(donate_argnums=())(*plan.shard(keys, logits, counts))
    assert (jax.random.key_data(same) == jax.random.key_data(keys)).all()
    np.testing.assert_array_equal(counted, draw(keys, logits, counts)[1])


def test_shardings_given_in_a_file_hold_for_the_program_that_is_split(tmp_path):
    """What is first among the results may be another value of the program that is run."""

    def step(x, y):
        return jnp.argmax(x, axis=1), 2 * y

    info = '{jax.result_info = "result[1]"'
    text = jax.jit(step).lower(X, np.ones((8, 4), np.float32)).as_text()
    text = text.replace(info, info + ', sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>')
    path = tmp_path / "model.mlir"
    path.write_text(text.replace("func.func", 'sdy.mesh @mesh = <["x"=2]>\n  func.func', 1))
    plan = pt.plan(path, mesh="x=2", hardware="cpu", tactics=[])
    (given,) = plan.program.given
    assert given.value == plan.program.results[1]
    assert plan.out_shardings == (PartitionSpec(), PartitionSpec("x"))
