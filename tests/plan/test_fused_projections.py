"""Projections fused in one matrix: each part is sharded by itself, and the price is told."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import numbers, planner, runs_as_the_original

B, S, H, D = 4, 4, 8, 8
WIDTH = H * D
ACTIVATIONS = B * S * WIDTH * 4
planned = planner(mesh="model=8", tactics=[pt.Megatron("model")])


def at_places(x):
    return x[..., :WIDTH], x[..., WIDTH : 2 * WIDTH], x[..., 2 * WIDTH :]


def by_reshape(x):
    x = x.reshape(*x.shape[:-1], 3, WIDTH)
    return x[..., 0, :], x[..., 1, :], x[..., 2, :]


def into_heads(x):
    x = jnp.moveaxis(x.reshape(*x.shape[:-1], 3, H, D), -3, 0)
    return tuple(each.reshape(*each.shape[:-2], WIDTH) for each in x)


SPLITS = {
    "split": lambda x: jnp.split(x, 3, axis=-1),
    "slices": at_places,
    "reshape": by_reshape,
    "reshape into heads": into_heads,
}


def attention(split, params, x):
    """A block of GPT-2: queries, keys and values are one product."""
    fused = x @ params["c_attn"]["kernel"] + params["c_attn"]["bias"]
    q, k, v = (each.reshape(B, S, H, D) for each in split(fused))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return x + mixed.reshape(B, S, WIDTH) @ params["c_proj"]["kernel"]


def parameters(*stack):
    return {
        "c_attn": {
            "kernel": 0.1 * numbers(*stack, WIDTH, 3 * WIDTH),
            "bias": 0.1 * numbers(*stack, 3 * WIDTH, seed=1),
        },
        "c_proj": {"kernel": 0.1 * numbers(*stack, WIDTH, WIDTH, seed=2)},
    }


def layers(split, params, x):
    return lax.scan(lambda x, layer: (attention(split, layer, x), None), x, params)[0]


def train_step(layer, state, x):
    """With momentum, which has the fused dimension, too."""
    grads = jax.grad(lambda p: jnp.mean(layer(p, x) ** 2))(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["mu"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "mu": momentum}


def counted(plan, kind):
    return [c.bytes for c in plan.collectives for _ in range(c.count) if c.kind == kind]


@pytest.mark.parametrize("form", SPLITS)
def test_heads_are_sharded_and_no_activation_is_gathered(form):
    """One all_reduce of activations; the weight is exchanged, a shard at a time."""
    args = (parameters(), numbers(B, S, WIDTH))
    plan = planned(functools.partial(attention, SPLITS[form]), *args)
    shard = WIDTH * 3 * WIDTH * 4 // 8
    assert [(c.kind, c.bytes) for c in plan.collectives] == [
        ("all_to_all", shard),
        ("all_to_all", shard),
        ("all_reduce", ACTIVATIONS),
    ]
    assert plan.in_shardings[0]["c_attn"]["kernel"] == jax.P(None, "model")
    assert plan.in_shardings[0]["c_proj"]["kernel"] == jax.P("model")
    assert not plan.history[0].replicated_uses
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize("form", ["split", "slices", "reshape into heads"])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_train_step_shards_the_weight_its_gradient_and_its_momentum(form, stacked):
    layer = functools.partial(layers if stacked else attention, SPLITS[form])
    params = parameters(*([2] if stacked else []))
    args = ({"params": params, "mu": params}, numbers(B, S, WIDTH))
    plan = planned(functools.partial(train_step, layer), *args)
    kernel = plan.in_shardings[0]["mu"]["c_attn"]["kernel"]
    assert kernel == jax.P(*[None] * stacked, None, "model")
    assert set(counted(plan, "all_reduce")) == {ACTIVATIONS}
    assert set(counted(plan, "all_gather")) <= {2 * 3 * WIDTH * 4, 3 * WIDTH * 4}  # of the bias
    runs_as_the_original(plan, *args, tolerance=2e-5)


def test_the_report_tells_the_price_and_how_to_save_it():
    args = (parameters(), numbers(B, S, WIDTH))
    plan = planned(functools.partial(attention, SPLITS["split"]), *args)
    (warning,) = [text for text in plan.history[0].warnings if "parts" in text]
    assert warning.startswith(
        "params['c_attn']['kernel'] dim 1 holds 3 parts of 64 that are used one by one: "
        "sharding each of them exchanges 12.0 KiB in "
    )
    assert warning.endswith(
        " per step; as two dimensions 3 x 64, the last one sharded, it would exchange nothing"
    )


def test_stored_as_the_report_says_it_exchanges_nothing():
    def fn(params, x):
        fused = jnp.einsum("bsd,dpn->bspn", x, params["c_attn"])
        q, k, v = (fused[:, :, i].reshape(B, S, H, D) for i in range(3))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return x + mixed.reshape(B, S, WIDTH) @ params["c_proj"]

    params = {"c_attn": 0.1 * numbers(WIDTH, 3, WIDTH), "c_proj": 0.1 * numbers(WIDTH, WIDTH)}
    args = (params, numbers(B, S, WIDTH))
    plan = planned(fn, *args, tactics=[pt.ManualPartition({"*c_attn*": 2}, axis="model")])
    assert [c.kind for c in plan.collectives] == ["all_reduce"]
    assert not any("parts" in text for text in plan.history[0].warnings)
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize("devices", [2, 8])
def test_gates_fused_with_what_they_gate(devices):
    """Also where the axis would divide the number of parts: each device has some of both."""

    def fn(params, x):
        gate, up = jnp.split(x @ params["gate_up_proj"], 2, axis=-1)
        return x + (jax.nn.silu(gate) * up) @ params["down_proj"]

    params = {"gate_up_proj": 0.1 * numbers(WIDTH, 256), "down_proj": 0.1 * numbers(128, WIDTH)}
    args = (params, numbers(B, S, WIDTH))
    plan = planned(fn, *args, mesh=f"model={devices}")
    assert {c.kind for c in plan.collectives} == {"all_to_all", "all_reduce"}
    assert counted(plan, "all_reduce") == [ACTIVATIONS]
    runs_as_the_original(plan, *args)


def test_gates_of_a_recurrent_cell():
    """Two products are added before the four parts are taken out, in a loop."""

    def cell(params, xs):
        def body(carry, x):
            h, c = carry
            gates = x @ params["w"] + h @ params["u"] + params["b"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        start = (jnp.zeros((B, 32)), jnp.zeros((B, 32)))
        return lax.scan(body, start, xs)[0][0]

    params = {"w": numbers(16, 128), "u": 0.1 * numbers(32, 128), "b": numbers(128)}
    tactics = [pt.ManualPartition({"*'w'*": 1, "*'u'*": 1}, axis="model")]
    args = (params, numbers(5, B, 16))
    plan = planned(cell, *args, tactics=tactics)
    assert plan.spmd.argument_layouts[2][1]
    runs_as_the_original(plan, *args)


def test_data_parallel_weights_are_stored_and_reduced_as_without():
    """FSDP shards the weight as it is: it is gathered and reduced, its parts are not sharded."""
    params = parameters()
    args = ({"params": params, "mu": params}, numbers(8, S, WIDTH))

    def layer(params, x):
        q, k, v = SPLITS["split"](x @ params["c_attn"]["kernel"] + params["c_attn"]["bias"])
        return x + (jax.nn.softmax(q * k, axis=-1) * v) @ params["c_proj"]["kernel"]

    tactics = [pt.DataParallel("data"), pt.FullyShardedDataParallel("data")]
    plan = planned(functools.partial(train_step, layer), *args, mesh="data=8", tactics=tactics)
    assert {c.kind for c in plan.collectives} == {"all_gather", "reduce_scatter"}
    assert not any("parts" in text for entry in plan.history for text in entry.warnings)
    runs_as_the_original(plan, *args, tolerance=2e-5)


def test_of_unequal_parts_the_report_offers_a_weight_for_each():
    """As Mamba 2 fuses them: it is told what taking them out costs."""

    def fn(params, x):
        z, y, dt = jnp.split(x @ params["in_proj"], [64, 192], axis=-1)
        return (jax.nn.silu(z) * y[..., :64] + dt[..., :1]) @ params["out_proj"]

    params = {"in_proj": 0.1 * numbers(WIDTH, 224), "out_proj": 0.1 * numbers(64, WIDTH)}
    args = (params, numbers(B, S, WIDTH))
    plan = planned(fn, *args, tactics=[pt.ManualPartition({"*in_proj*": 1}, axis="model")])
    warning = next(text for text in plan.history[0].warnings if "in_proj" in text)
    assert "dim 1 holds parts of 64, 128, 32 that are used one by one" in warning
    assert warning.endswith(
        "with a weight for each part, sharded by itself, it would exchange nothing"
    )
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize(
    "use", [lambda h: h[:, :, 1:].sum(), lambda h: (h[:, :, 1:] * h[:, :, :-1]).sum()]
)
def test_what_is_sliced_but_not_taken_apart_is_no_fused_projection(use):
    args = ({"w": numbers(WIDTH, 64)}, numbers(B, S, WIDTH))
    tactics = [pt.ManualPartition({"*'w'*": 1}, axis="model")]
    plan = planned(lambda params, x: use(x @ params["w"]), *args, tactics=tactics)
    assert not any("parts of" in text for text in plan.history[0].warnings)
    runs_as_the_original(plan, *args)


def test_parts_that_are_put_together_are_left_to_the_program():
    """No product with an argument is behind these: nothing is rewritten."""

    def fn(x):
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([b, -a], axis=-1)

    plan = planned(fn, numbers(4, 16), tactics=())
    assert not [op for op in plan.program.operations if op.short == "reshape"]
