"""Dimensions that a program merges for a product are planned as if they had never been merged."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import array, numbers, planner, runs_as_the_original

B, S, H, D = 2, 4, 8, 8
WIDTH = H * D
planned = planner(mesh="model=8", tactics=[pt.Megatron("model")])

# How the heads' tensor `[batch, sequence, heads, head-dim]` is laid out for a batched product.
MERGED = {
    "separate": lambda x: jnp.einsum("bshd->bhsd", x),
    "batch, heads": lambda x: jnp.einsum("bshd->bhsd", x).reshape(B * H, S, D),
    "heads, batch": lambda x: jnp.einsum("bshd->hbsd", x).reshape(H * B, S, D),
}
UNMERGED = {
    "separate": lambda x: jnp.einsum("bhsd->bshd", x),
    "batch, heads": lambda x: jnp.einsum("bhsd->bshd", x.reshape(B, H, S, D)),
    "heads, batch": lambda x: jnp.einsum("hbsd->bshd", x.reshape(H, B, S, D)),
}


def attention(order, params, x):
    """As PyTorch's `bmm` has it: one batch dimension, whatever it is made of."""
    q, k, v = (
        MERGED[order]((x @ params[name]).reshape(B, S, H, D))
        for name in ("q_proj", "k_proj", "v_proj")
    )
    scores = jnp.einsum("...qd,...kd->...qk", q, k) / math.sqrt(D)
    scores = jnp.where(jnp.tril(jnp.ones((S, S), bool)), scores, -1e9)
    mixed = jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores, axis=-1), v)
    return x + UNMERGED[order](mixed).reshape(B, S, WIDTH) @ params["o_proj"]


def parameters(*stack):
    return {
        name: 0.1 * numbers(*stack, WIDTH, WIDTH, seed=seed)
        for seed, name in enumerate(("q_proj", "k_proj", "v_proj", "o_proj"))
    }


def step(layer, params, x):
    return jax.value_and_grad(lambda p, x: jnp.mean(layer(p, x) ** 2), argnums=(0, 1))(params, x)


def counted(plan):
    return [(c.kind, c.bytes, c.count) for c in plan.collectives]


@pytest.mark.parametrize("order", MERGED)
def test_heads_are_sharded_with_one_all_reduce(order):
    """Whether batch and heads are one dimension, and in which order, makes no difference."""
    args = (parameters(), numbers(B, S, WIDTH))
    plan = planned(functools.partial(attention, order), *args)
    assert counted(plan) == [("all_reduce", B * S * WIDTH * 4, 1)]
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize("order", ["batch, heads", "heads, batch"])
def test_gradients_need_no_more_than_those_of_separate_dimensions(order):
    args = (parameters(), numbers(B, S, WIDTH))
    plan, separate = (
        planned(functools.partial(step, functools.partial(attention, which)), *args)
        for which in (order, "separate")
    )
    assert {c.kind for c in plan.collectives} == {"all_reduce"}
    assert counted(plan) == counted(separate)
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize("remat", [False, True])
def test_also_in_the_body_of_a_loop_over_layers(remat):
    def layers(params, x):
        def body(x, layer):
            return attention("batch, heads", layer, x), None

        return lax.scan(jax.checkpoint(body) if remat else body, x, params)[0]

    args = (parameters(3), numbers(B, S, WIDTH))
    plan = planned(functools.partial(step, layers), *args)
    assert {(c.kind, c.count) for c in plan.collectives} == {("all_reduce", 3)}
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize("merged", ["bkg", "bk", "kg"])
def test_groups_of_query_heads(merged):
    """Three factors: batch, heads of keys, and queries that share each of them."""
    kv, groups = 8, 2
    sizes = {"b": B, "k": kv, "g": groups}

    def layer(params, x):
        q = (x @ params["q_proj"]).reshape(B, S, kv, groups, D).transpose(0, 2, 3, 1, 4)
        k, v = (
            jnp.broadcast_to(
                (x @ params[n]).reshape(B, S, kv, 1, D).transpose(0, 2, 3, 1, 4), q.shape
            )
            for n in ("k_proj", "v_proj")
        )
        shape = [sizes[name] for name in "bkg" if name not in merged]
        shape.insert("bkg".index(merged[0]), math.prod(sizes[name] for name in merged))
        q, k, v = (each.reshape(*shape, S, D) for each in (q, k, v))
        weights = jax.nn.softmax(jnp.einsum("...qd,...kd->...qk", q, k), axis=-1)
        mixed = jnp.einsum("...qk,...kd->...qd", weights, v)
        mixed = mixed.reshape(B, kv, groups, S, D).transpose(0, 3, 1, 2, 4)
        return x + mixed.reshape(B, S, -1) @ params["o_proj"]

    width = kv * groups * D
    params = {
        "q_proj": 0.1 * numbers(WIDTH, width),
        "k_proj": 0.1 * numbers(WIDTH, kv * D, seed=1),
        "v_proj": 0.1 * numbers(WIDTH, kv * D, seed=2),
        "o_proj": 0.1 * numbers(width, WIDTH, seed=3),
    }
    args = (params, numbers(B, S, WIDTH))
    plan = planned(functools.partial(step, layer), *args)
    assert {(c.kind, c.bytes) for c in plan.collectives} == {("all_reduce", B * S * WIDTH * 4)}
    runs_as_the_original(plan, *args)
    plan = planned(layer, *args)
    assert counted(plan) == [("all_reduce", B * S * WIDTH * 4, 1)]
    runs_as_the_original(plan, *args)


def test_masks_and_dropout_of_the_merged_shape():
    """A mask repeated for each head, and random numbers, which stay those of the original."""

    def layer(params, x, mask, key):
        q, k, v = (
            MERGED["batch, heads"]((x @ params[name]).reshape(B, S, H, D))
            for name in ("q_proj", "k_proj", "v_proj")
        )
        repeated = jnp.repeat(mask, H, axis=0)[:, None, :]
        scores = jnp.where(repeated > 0, jnp.matmul(q, k.transpose(0, 2, 1)), -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1)
        kept = jax.random.bernoulli(key, 0.5, weights.shape)
        mixed = jnp.matmul(jnp.where(kept, 2 * weights, 0.0), v)
        return UNMERGED["batch, heads"](mixed).reshape(B, S, WIDTH) @ params["o_proj"]

    mask = np.ones((B, S), np.float32)
    mask[1, 3] = 0
    args = (parameters(), numbers(B, S, WIDTH), mask, jax.random.key(0))
    plan = planned(layer, *args)
    assert counted(plan) == [("all_reduce", B * S * WIDTH * 4, 1)]
    runs_as_the_original(plan, *args)


def test_tokens_may_be_sharded_along_the_sequence():
    """Flattened tokens, their logits and their losses: batch and sequence stay two dimensions."""

    def loss(w, x, targets):
        logits = x.reshape(-1, x.shape[-1]) @ w
        picked = jnp.take_along_axis(logits, targets.reshape(-1)[:, None], axis=1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked[:, 0])

    x, w = numbers(2, 8, 16), numbers(16, 24)
    targets = np.random.default_rng(0).integers(0, 24, (2, 8), np.int32)
    tactics = [pt.ManualPartition({"x": 1, "targets": 1}, axis="seq")]
    plan = pt.plan(
        jax.value_and_grad(loss), w, x, targets, mesh="seq=8", hardware="cpu", tactics=tactics
    )
    assert {c.kind for c in plan.collectives} == {"all_reduce"}
    runs_as_the_original(plan, w, x, targets)


def write_rows(x):
    return x.at[:, jnp.array([2, 0])].set(1.0).at[:, jnp.array([1, 2])].add(x[:, :2])


# What may stand between a merge and what takes it apart, of an `x [merged, 4, 6]`.
BETWEEN = {
    "arithmetic": lambda x: jnp.tanh(x) * 2 + jnp.where(x > 0, x, jnp.clip(x, -1, 1)),
    "reductions": lambda x: x - x.max(axis=1, keepdims=True) + x.sum((1, 2))[:, None, None],
    "reductions along it": lambda x: x - x.mean(axis=0),
    "transposes": lambda x: jnp.swapaxes(jnp.swapaxes(x, 0, 1) + 1, 0, 1),
    "products": lambda x: jnp.einsum("nij,nkj->nik", x, x) @ jnp.ones((4, 6)),
    "products along it": lambda x: x * jnp.einsum("nij,nkl->ijkl", x, x)[:, :, 0, 0],
    "slices and pads": lambda x: jnp.pad(x[:, 1:3], ((0, 0), (1, 1), (0, 0))),
    "concatenation": lambda x: jnp.concatenate([x[:, 2:], x[:, :2]], axis=1),
    "windows": lambda x: lax.dynamic_update_slice_in_dim(
        x, lax.dynamic_slice_in_dim(x, jnp.int32(1), 1, axis=1), 2, axis=1
    ),
    "prefix sums": lambda x: jnp.cumsum(x, axis=1) + lax.cummax(x, axis=2),
    "reverse": lambda x: x[:, ::-1],
    "sorts": lambda x: jnp.sort(x, axis=1) + lax.top_k(x, 6)[0],
    "positions": lambda x: x + jnp.arange(x.shape[0])[:, None, None] % 3,
    "look-ups": lambda x: (
        jnp.take(x, jnp.array([2, 0, 1]), axis=1)[:, :, :1]
        + jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1)[:, :1]
    ),
    "writes of rows": write_rows,
    "constants": lambda x: x * np.arange(x.shape[0], dtype=np.float32)[:, None, None] ** 2,
    "transforms": lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=2), 6, axis=2),
    "loops": lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + i * x, x),
    "branches": lambda x: lax.cond(x.sum() > 0, jnp.sin, lambda y: y + 1, x),
    "barriers": lambda x: lax.optimization_barrier((x, x + 1))[1],
    "dimensions of one": lambda x: (x[:, None] * 2).reshape(-1, 1, 4, 6)[:, 0],
}


@pytest.mark.parametrize("kind", BETWEEN)
def test_what_may_stand_between(kind):
    """The inner factor is sharded through all of it, and all of it computes the same numbers."""

    def fn(x):
        return BETWEEN[kind](x.reshape(-1, 4, 6)).reshape(3, 8, -1)

    x = numbers(3, 8, 4, 6)
    plan = planner(mesh="model=8", tactics=[pt.ManualPartition({"x": 1}, axis="model")])(fn, x)
    assert "all_gather" not in {c.kind for c in plan.collectives if c.bytes > 512}
    assert not [v for v in made_by_operations(plan) if shape_of(plan, v)[:1] == (24,)]
    runs_as_the_original(plan, x, tolerance=2e-5)


AS_IT_IS = {
    "an argument": (lambda x, y: (x.reshape(-1, 4) + y).reshape(3, 8, 4), [(24, 4)]),
    "a result": (lambda x: x.reshape(-1, 4) + 1, []),
    "parts of it": (lambda x: jnp.roll(x.reshape(-1, 4), 1, axis=0).reshape(3, 8, 4), []),
    "its order": (lambda x: jnp.sort(x.reshape(-1, 4), axis=0).reshape(3, 8, 4), []),
    "a convolution": (
        lambda x: lax.conv(x.reshape(24, 1, 4), jnp.ones((1, 1, 1)), (1,), "SAME").reshape(3, 8, 4),
        [],
    ),
    "a last dimension": (lambda x: (x.transpose(2, 0, 1).reshape(4, 24) * 2).sum(), []),
}


@pytest.mark.parametrize("what", AS_IT_IS)
def test_a_merged_dimension_stays_where_something_needs_it(what):
    fn, more = AS_IT_IS[what]
    args = (numbers(3, 8, 4), *(numbers(*shape) for shape in more))
    plan = planner(mesh="model=2")(fn, *args)
    merged = [op for op in plan.program.operations if 24 in shape_of(plan, op.results[0])]
    assert merged
    runs_as_the_original(plan, *args)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[::-1],
        lambda x: x + lax.broadcasted_iota(jnp.float32, x.shape, 0),
        lambda x: x + lax.broadcasted_iota(jnp.uint8, x.shape, 0),
        lambda x: jnp.einsum("nij,mij->nm", x, x) @ x[:, :, 0],
    ],
    ids=["reversed", "floats", "small numbers", "with itself"],
)
def test_what_needs_exchanges_is_right_nevertheless(fn):
    x = numbers(3, 8, 4, 6)
    tactics = [pt.ManualPartition({"x": 1}, axis="model")]
    plan = planner(mesh="model=8", tactics=tactics)(
        lambda x: fn(x.reshape(-1, 4, 6)).reshape(3, 8, -1), x
    )
    runs_as_the_original(plan, x, tolerance=2e-5)


def test_factors_that_fit_are_all_kept_apart():
    """24 merged from 3 x 8 and read as 6 x 4 is 3 x 2 x 4."""
    x = numbers(3, 8, 5)
    plan = planner(mesh="model=2")(lambda x: jnp.sin(x.reshape(-1, 5)).reshape(6, 4, 5), x)
    assert [shape_of(plan, op.results[0]) for op in plan.program.operations] == [
        (3, 2, 4, 5),
        (3, 2, 4, 5),
        (6, 4, 5),
    ]
    runs_as_the_original(plan, x)


def test_factors_that_do_not_fit_end_the_first_ones():
    """24 merged from 3 x 8 and read as 2 x 12: there is no dimension of both."""
    x = numbers(3, 8, 5)
    plan = planner(mesh="model=2")(lambda x: jnp.sin(x.reshape(-1, 5)).reshape(2, 12, 5), x)
    assert [op.short for op in plan.program.operations] == ["sine", "reshape"]
    runs_as_the_original(plan, x)


def made_by_operations(plan):
    made = (op for op in plan.program.operations if not op.traits.constant)
    return [value for op in made if op.short != "iota" for value in op.results]


def shape_of(plan, value):
    return plan.program.values[value].type.shape


def test_arguments_and_results_keep_their_names_and_lines_their_places():
    plan = planned(
        functools.partial(attention, "batch, heads"),
        {name: array(WIDTH, WIDTH) for name in parameters()},
        array(B, S, WIDTH),
    )
    assert plan.program.argument_names[0] == "params['k_proj']"
    products = [op for op in plan.program.operations if op.short == "dot_general"]
    assert all("test_merged_dimensions.py" in op.source for op in products)
