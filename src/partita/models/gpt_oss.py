"""GPT-OSS, a mixture of experts, and its Adam train step, in plain JAX and Optax.

Grouped-query attention with rotary positions, whose softmax has one more, learned, score per head
(a sink, which takes weight and has no value); every other layer sees a window of the last tokens.
Every feed-forward is a mixture of experts, whose gate is clamped, with a fixed capacity (see
`partita.models.moe`). All matrices but embedding and output have biases. The window is scanned
over with the stacked layers, so that all layers are one loop body, rematerialized; it masks scores
and saves no time. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, H key/value heads,
G query heads per key/value head, K head-dim, E experts, C capacity, F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import layers, training

Params = dict[str, Any]

SHARPNESS, LIMIT = 1.702, 7.0
"""Of the gate: x times the logistic function of 1.702 x, where gate and up are clamped."""


@dataclasses.dataclass(frozen=True)
class GPTOSSConfig:
    """Sizes of a GPT-OSS. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    sequence: int
    embed: int
    kv_heads: int
    group: int
    """Query heads that share a key/value head."""
    head_dim: int
    experts: int
    top: int
    """Experts that a token is sent to."""
    ffn: int
    """Width of one expert."""
    vocabulary: int
    window: int
    """Tokens that every other layer sees, from the first on."""
    capacity_factor: float = 1.25
    balance: float = 0.01
    """Weight of the load-balance loss."""
    theta: float = 150_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


# Table 1 of arXiv 2508.10925 (the model card), and config.json of openai/gpt-oss-{20b,120b}. How
# it was trained, and so a load-balance loss, is not published.
PRESETS = {
    "gpt-oss-tiny": GPTOSSConfig(2, 16, 32, 64, 4, 2, 8, 8, 2, 64, 512, 8, capacity_factor=1.0),
    "gpt-oss-20b": GPTOSSConfig(24, 16, 8192, 2880, 8, 8, 64, 32, 4, 2880, 201_088, 128),
    "gpt-oss-120b": GPTOSSConfig(36, 16, 8192, 2880, 8, 8, 64, 128, 4, 2880, 201_088, 128),
}


def init(config: GPTOSSConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key, output_key = jax.random.split(key, 3)
    layer = functools.partial(_init_layer, c)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)),
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": jnp.ones(c.embed),
    } | layers.matrices(output_key, {"output": ((c.embed, c.vocabulary), c.embed)})
    return training.state(params, c.learning_rate)


def _init_layer(config: GPTOSSConfig, key: jax.Array) -> Params:
    """One layer: its matrices with their biases, its norms, and a sink per query head."""
    c = config
    heads, kv = (c.kv_heads, c.group, c.head_dim), (c.kv_heads, c.head_dim)
    shapes: layers.Shapes = {
        "wq": ((c.embed, *heads), c.embed),
        "wk": ((c.embed, *kv), c.embed),
        "wv": ((c.embed, *kv), c.embed),
        "wo": ((*heads, c.embed), c.kv_heads * c.group * c.head_dim),
        "router": ((c.embed, c.experts), c.embed),
        "w_gate": ((c.experts, c.embed, c.ffn), c.embed),
        "w_up": ((c.experts, c.embed, c.ffn), c.embed),
        "w_down": ((c.experts, c.ffn, c.embed), c.ffn),
    }
    biases = {
        "bq": heads,
        "bk": kv,
        "bv": kv,
        "bo": (c.embed,),
        "b_router": (c.experts,),
        "b_gate": (c.experts, c.ffn),
        "b_up": (c.experts, c.ffn),
        "b_down": (c.experts, c.embed),
        "sinks": (c.kv_heads, c.group),
    }
    zeros = {name: jnp.zeros(shape) for name, shape in biases.items()}
    return (
        layers.matrices(key, shapes) | zeros | {"ln1": jnp.ones(c.embed), "ln2": jnp.ones(c.embed)}
    )


def _attention(config: GPTOSSConfig, x: jax.Array, layer: Params, window: jax.Array) -> jax.Array:
    """Causal grouped-query self-attention with sinks, `[B, S, D] -> [B, S, D]`."""
    q = layers.dense("bsd,dhgk->bshgk", x, layer["wq"], layer["bq"])
    k = layers.dense("bsd,dhk->bshk", x, layer["wk"], layer["bk"])
    v = layers.dense("bsd,dhk->bshk", x, layer["wv"], layer["bv"])
    q, k = layers.rope(q, config.theta), layers.rope(k, config.theta)
    scores = jnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(jnp.float32) * config.head_dim**-0.5
    scores = jnp.where(layers.causal(x.shape[1], window), scores, layers.MASKED)
    # A softmax over the keys and the sink, without a copy of the scores that has room for it.
    sink = layer["sinks"][None, :, :, None, None]
    highest = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), sink))
    shares = jnp.exp(scores - highest)
    total = jnp.sum(shares, axis=-1, keepdims=True) + jnp.exp(sink - highest)
    mixed = jnp.einsum("bhgqs,bshk->bqhgk", (shares / total).astype(x.dtype), v)
    return layers.dense("bqhgk,hgkd->bqd", mixed, layer["wo"], layer["bo"])


def _moe(config: GPTOSSConfig, x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
    """Experts with biases, `[B, S, D] -> [B, S, D]`, and the load-balance loss."""
    c = config
    logits = jnp.einsum("bsd,de->bse", x.astype(jnp.float32), layer["router"]) + layer["b_router"]
    sent = layers.chosen(logits, c.top)
    weights = jax.nn.softmax(jnp.where(sent == 1, logits, layers.MASKED), axis=-1)
    places = layers.capacity(c.capacity_factor, x.shape[1], c.top, c.experts)
    routing = layers.route(sent, weights, places, x.dtype)
    taken = jnp.einsum("bsec,bsd->becd", routing.dispatch, x)
    gate = _biased("becd,edf->becf", taken, layer["w_gate"], layer["b_gate"])
    up = _biased("becd,edf->becf", taken, layer["w_up"], layer["b_up"])
    gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
    hidden = gate * jax.nn.sigmoid(SHARPNESS * gate) * (up + 1)
    out = _biased("becf,efd->becd", hidden, layer["w_down"], layer["b_down"])
    mixed = jnp.einsum("bsec,becd->bsd", routing.combine, out)
    return mixed, layers.balance(sent, jax.nn.softmax(logits, axis=-1), c.top)


def _biased(spec: str, x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
    """A product of every expert, `[B, E, C, ...]`, and its bias, `[E, ...]`."""
    return layers.dense(spec, x, w, bias[:, None, :])


def loss(config: GPTOSSConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`,
    plus the load-balance loss, averaged over the layers and weighted."""
    c = config

    @jax.checkpoint
    def block(x: jax.Array, inputs: tuple[Params, jax.Array]) -> tuple[jax.Array, jax.Array]:
        layer, window = inputs
        x = x + _attention(c, layers.rms_norm(x, layer["ln1"], 1e-5), layer, window)
        mixed, balance = _moe(c, layers.rms_norm(x, layer["ln2"], 1e-5), layer)
        return x + mixed, balance

    x = params["embed"].astype(c.dtype)[batch["tokens"]]
    window = jnp.where(jnp.arange(c.layers) % 2 == 0, c.window, x.shape[1])
    x, balance = jax.lax.scan(block, x, (params["layers"], window))
    x = layers.rms_norm(x, params["ln_f"], 1e-5)
    logits = layers.dense("bsd,dn->bsn", x, params["output"])
    return training.cross_entropy(logits, batch["targets"]) + c.balance * jnp.mean(balance)


def train_step(config: GPTOSSConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: GPTOSSConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    return training.abstract_tokens(config.batch, config.sequence)


def example_batch(config: GPTOSSConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    bounds = dict.fromkeys(("tokens", "targets"), config.vocabulary)
    return training.example(abstract_batch(config), key, bounds)
