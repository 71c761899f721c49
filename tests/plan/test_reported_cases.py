"""Small programs on which users of other partitioners reported trouble. Mesh on 8 devices."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import partita as pt
from checks import array, planner, runs_as_the_original

plan = planner()


def test_a_dimension_that_does_not_divide_is_refused_and_another_one_offered():
    p = plan(
        lambda x: 2 * x,
        array(1003, 16),
        mesh="x=8",
        tactics=[pt.ManualPartition({"x": 0}, axis="x")],
    )
    (refusal,) = p.history[0].refused
    assert refusal.what == "x dimension 0"
    assert refusal.reason == "1003 is not divisible by x=8"
    assert refusal.instead == "dimension 1 could be sharded along x"
    assert str(refusal) in str(p)
    assert p.in_shardings == (PartitionSpec(),)


def test_the_words_of_random_keys_stay_together():
    keys = jax.random.split(jax.random.key(0), 3)
    for words in ({"keys": 1}, {"result": [1]}):
        p = plan(
            lambda keys: jax.vmap(jax.random.fold_in)(keys, jnp.arange(3)),
            keys,
            mesh="x=2",
            tactics=[pt.ManualPartition(words, axis="x"), pt.AutomaticPartition(budget=20)],
        )
        assert p.history[0].refused[0].reason == "the words of a random key stay together"
        assert p.spmd.argument_layouts == p.spmd.result_layouts == (((), ()),)


def test_a_composite_dimension_says_which_factors_it_is_made_of():
    def fused_qkv(x, w):
        qkv = (x @ w).reshape(4, 16, 3, 6, 16)
        return qkv.sum(axis=2)

    p = plan(
        fused_qkv,
        array(4, 16, 64),
        array(64, 288),
        mesh="dp=2,tp=4",
        tactics=[pt.ManualPartition({"w": 1}, axis="tp")],
    )
    (refusal,) = p.history[0].refused
    assert refusal.what.startswith("reshape at ")
    assert refusal.reason == (
        "3 is not divisible by tp=4 (the dimension of 288 is made of 3 x 6 x 16, major first)"
    )
    # The request is met as far as it goes: the matrix is sharded, its product gathered.
    assert p.in_shardings[1] == PartitionSpec(None, "tp")
    assert [c.kind for c in p.collectives] == ["all_gather"]


def test_a_donated_input_and_its_output_are_laid_out_alike_and_aliased():
    p = plan(
        lambda s, g: s - g,
        array(16, 8),
        array(16, 8),
        mesh="x=8",
        tactics=[pt.ManualPartition({"s": 0}, axis="x")],
        donate_argnums=0,
    )
    assert p.out_shardings == p.in_shardings[0] == PartitionSpec("x")
    text = p.jit().lower(array(16, 8), array(16, 8)).compile().as_text()
    assert "input_output_alias={ {}: (0, {}, may-alias) }" in text


def test_master_weights_are_gathered_in_the_type_they_are_used_in():
    def step(w, x):
        return x @ w.astype(jnp.bfloat16)

    p = plan(
        step,
        array(256, 256),
        array(64, 256, dtype=jnp.bfloat16),
        mesh="fsdp=8",
        tactics=[
            pt.ManualPartition({"x": 0}, axis="fsdp"),
            pt.ManualPartition({"w": 0}, axis="fsdp"),
        ],
    )
    (gather,) = p.collectives
    assert (gather.kind, gather.dtype, gather.bytes) == ("all_gather", "bf16", 256 * 256 * 2)
    # In what the compiler is given; the host backend has no bf16 collectives and widens them.
    gathers = re.findall(r"all_gather.*?-> tensor<(\S+)>", str(p.exported.mlir_module()))
    assert gathers == ["256x256xbf16"]


def adam_state():
    w = jax.random.normal(jax.random.key(0), (4, 64, 64))
    return {"w": w, "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def adam_step(state, x):
    def loss(w):
        return jnp.sum(jnp.tanh(jnp.einsum("bd,ldf->lbf", x, w)) ** 2)

    g = jax.grad(loss)(state["w"])
    m, v = 0.9 * state["m"] + 0.1 * g, 0.999 * state["v"] + 0.001 * g * g
    return {"w": state["w"] - 0.01 * m / (jnp.sqrt(v) + 1e-6), "m": m, "v": v}


def test_optimizer_state_is_laid_out_like_its_parameter_and_never_made_whole():
    state = jax.eval_shape(adam_state)
    p = plan(
        adam_step,
        state,
        array(16, 64),
        mesh="x=2,y=4",
        tactics=[
            pt.ManualPartition({"state['w']": 1}, axis="x"),
            pt.ManualPartition({"state['w']": 2}, axis="y"),
        ],
        donate_argnums=0,
    )
    wanted = PartitionSpec(None, "x", "y")
    assert p.in_shardings[0] == {"w": wanted, "m": wanted, "v": wanted}
    assert p.out_shardings == p.in_shardings[0]

    made = p.init(adam_state)
    for leaf in made.values():
        assert {s.data.shape for s in leaf.addressable_shards} == {(4, 32, 16)}
    np.testing.assert_allclose(made["w"], adam_state()["w"], rtol=1e-6)

    whole, piece = 4 * 64 * 64 * 4, 4 * 32 * 16 * 4
    shardings = jax.tree.map(lambda a: a.sharding, made)
    memory = jax.jit(adam_state, out_shardings=shardings).lower().compile().memory_analysis()
    assert memory.output_size_in_bytes <= 3 * piece + 64
    assert memory.temp_size_in_bytes < whole


# ------------------------------------------------------------------------------ stacked layers


def layers(W, h):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, W)[0]


def train(W, h):
    loss, gradient = jax.value_and_grad(lambda W: jnp.sum(layers(W, h)))(W)
    return loss, W - 0.1 * gradient


STACK = (array(8, 64, 64), array(16, 64))


def stack():
    rng = np.random.default_rng(0)
    W, h = (rng.standard_normal(t.shape, dtype=np.float32) for t in STACK)
    return 0.1 * W, h


def test_a_stack_sharded_on_the_scanned_dimension_moves_one_layer_per_step():
    p = plan(layers, *STACK, mesh="x=8", tactics=[pt.ManualPartition({"W": 0}, axis="x")])
    assert p.in_shardings[0] == PartitionSpec("x")
    (layer,) = p.collectives
    assert (layer.bytes, layer.count) == (64 * 64 * 4, 8)
    runs_as_the_original(p, *stack())


def test_it_is_said_that_every_iteration_exchanges_and_which_dimensions_would_not():
    p = plan(layers, *STACK, mesh="x=8", tactics=[pt.ManualPartition({"W": 0}, axis="x")])
    warning, slower = p.history[0].warnings
    assert slower.startswith("the step is slower")
    assert warning.startswith("W: in each iteration the loop reads one index")
    assert "exchanges f32[1,64,64] (16.0 KiB) 8 times" in warning
    assert warning.endswith("sharded on dimensions 1 or 2, it would stay local")
    assert "warning W: in each iteration" in str(p)


def test_another_dimension_than_the_scanned_one_is_preferred():
    p = plan(layers, *STACK, mesh="x=8", tactics=[pt.ManualPartition({"W": [0, 1]}, axis="x")])
    assert p.in_shardings[0] == PartitionSpec(None, "x")
    automatic = plan(train, *STACK, mesh="x=8", tactics=None)
    assert automatic.in_shardings[0] != PartitionSpec("x")


def test_stacked_gradients_are_laid_out_like_the_parameter_and_scattered_inside_the_loop():
    tactics = [pt.ManualPartition({"h": 0}, axis="x"), pt.ManualPartition({"W": 1}, axis="x")]
    p = plan(train, *STACK, mesh="x=8", tactics=tactics)
    assert p.in_shardings[0] == p.out_shardings[1] == PartitionSpec(None, "x")
    (gradient,) = (c for c in p.collectives if c.kind == "reduce_scatter")
    assert (gradient.bytes, gradient.count) == (64 * 64 * 4, 8)
    gathered = [c for c in p.collectives if c.kind == "all_gather"]
    assert {(c.bytes, c.count) for c in gathered} == {(64 * 64 * 4, 8)}  # one layer at a time
    runs_as_the_original(p, *stack())


def test_gradients_stacked_on_a_sharded_dimension_are_written_where_they_belong():
    tactics = [pt.ManualPartition({"h": 0}, axis="x"), pt.ManualPartition({"W": 0}, axis="x")]
    p = plan(train, *STACK, mesh="x=8", tactics=tactics)
    assert p.in_shardings[0] == p.out_shardings[1] == PartitionSpec("x")
    assert all(c.bytes <= 64 * 64 * 4 for c in p.collectives)
    runs_as_the_original(p, *stack())


# ------------------------------------------------------------- batched operations need no traffic


def permute_rows(x, order):
    return jax.vmap(lambda rows, at: rows[at])(x, order)


def test_batched_operations_stay_where_their_batch_is():
    batch = [pt.ManualPartition({"x": 0}, axis="x")]
    cases = (
        (permute_rows, array(8, 128, 4), array(8, 128, dtype=jnp.int32)),
        (lambda x: jnp.fft.fft(x), array(16, 256, dtype=jnp.complex64)),
        (lambda x: jnp.linalg.cholesky(x), array(16, 8, 8)),
    )
    for fn, *args in cases:
        p = plan(fn, *args, mesh="x=8", tactics=batch)
        assert p.out_shardings == PartitionSpec("x")
        assert not p.collectives


# ------------------------------------------------------------------------------- caches


@pytest.mark.parametrize(("positions", "gathered"), [(16, ["all_gather"]), (1, [])])
def test_a_cache_is_written_where_it_lies(positions, gathered):
    """Several positions at once may cross from one piece into the next, a single one cannot."""

    def write(cache, new, at):
        return jax.lax.dynamic_update_slice_in_dim(cache, jnp.tanh(new), at, axis=1)

    rng = np.random.default_rng(0)
    cache, new = (rng.standard_normal((4, n, 8), dtype=np.float32) for n in (32, positions))
    name = "new" if positions > 1 else "cache"
    args = (cache, new, np.int32(5))
    p = plan(write, *args, mesh="x=8", tactics=[pt.ManualPartition({name: 1}, axis="x")])
    assert any(p.in_shardings[0 if name == "cache" else 1])
    assert [c.kind for c in p.collectives] == gathered
    for at in (-3, 0, 5, 31, 40):
        runs_as_the_original(p, cache, new, np.int32(at))


@pytest.mark.parametrize("combine", [jax.lax.add, jax.lax.mul, jax.lax.max, jax.lax.min])
def test_an_initial_value_counts_once_also_for_pieces_of_one_element(combine):
    """Of a single element XLA's reduction makes that element, whatever it starts from."""

    def reduce(x):
        return jax.lax.reduce(x, np.int32(5), combine, (0,))

    for x in np.arange(8, dtype=np.int32), np.arange(8, dtype=np.int32) - 9:
        p = plan(reduce, x, mesh="x=8", tactics=[pt.ManualPartition({"x": 0}, axis="x")])
        assert p.in_shardings == (PartitionSpec("x"),)
        assert int(p.jit()(x)) == int(jax.jit(reduce)(x))


@pytest.mark.parametrize("row", [0, 3, 7])
def test_a_row_that_another_device_has_is_not_written(row):
    """XLA turns a scatter of one index into a slice, which it merges with the one before."""

    def write(x, at):
        reversed_ = jax.lax.rev(jnp.tanh(x), (0,))
        return reversed_.at[at].set(reversed_[:1])

    x = np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32)
    args = (x, np.array([row], np.int32))
    p = plan(write, *args, mesh="x=4", tactics=[pt.ManualPartition({"result": 0}, axis="x")])
    assert p.out_shardings == PartitionSpec("x")
    runs_as_the_original(p, *args)
