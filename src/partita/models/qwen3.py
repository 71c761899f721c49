"""Qwen 3, dense or a mixture of experts, and its Adam train step, in plain JAX and Optax.

Grouped-query attention with rotary positions and norms of every query and key; SwiGLU, or a
mixture of SwiGLU experts with a fixed capacity (see `partita.models.moe`) and a loss that balances
their load. The layers are stacked, for `lax.scan` with rematerialization. Parameters are kept in
float32 and used in `config.dtype`.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, H key/value heads,
G query heads per key/value head, K head-dim, E experts, F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import layers, training

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Qwen3Config:
    """Sizes of a Qwen 3. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    sequence: int
    embed: int
    kv_heads: int
    group: int
    """Query heads that share a key/value head."""
    head_dim: int
    ffn: int
    """Width of the feed-forward, or of one expert."""
    vocabulary: int
    experts: int = 0
    """Experts of a layer, or 0 for a dense model."""
    top: int = 0
    """Experts that a token is sent to."""
    tied: bool = False
    """Whether the embedding is the output projection, too."""
    capacity_factor: float = 1.25
    balance: float = 0.001
    """Weight of the load-balance loss."""
    theta: float = 1_000_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


# Tables 1 and 2 of arXiv 2505.09388, and config.json of Qwen/Qwen3-{0.6B,8B,32B,30B-A3B,235B-A22B}.
PRESETS = {
    "qwen3-tiny": Qwen3Config(2, 16, 32, 64, 4, 2, 8, 128, 512),
    "qwen3-moe-tiny": Qwen3Config(
        2, 16, 32, 64, 4, 2, 8, 64, 512, experts=8, top=2, capacity_factor=1.0
    ),
    "qwen3-0.6b": Qwen3Config(28, 16, 8192, 1024, 8, 2, 128, 3072, 151_936, tied=True),
    "qwen3-8b": Qwen3Config(36, 16, 8192, 4096, 8, 4, 128, 12288, 151_936),
    "qwen3-32b": Qwen3Config(64, 16, 8192, 5120, 8, 8, 128, 25600, 151_936),
    "qwen3-30b-a3b": Qwen3Config(48, 16, 8192, 2048, 4, 8, 128, 768, 151_936, experts=128, top=8),
    "qwen3-235b-a22b": Qwen3Config(
        94, 16, 8192, 4096, 4, 16, 128, 1536, 151_936, experts=128, top=8
    ),
}


def init(config: Qwen3Config, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key, output_key = jax.random.split(key, 3)
    layer = functools.partial(_init_layer, c)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)) * c.embed**-0.5,
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": jnp.ones(c.embed),
    }
    if not c.tied:
        params |= layers.matrices(output_key, {"output": ((c.embed, c.vocabulary), c.embed)})
    return training.state(params, c.learning_rate)


def _init_layer(config: Qwen3Config, key: jax.Array) -> Params:
    """One layer: its attention and norms, and its feed-forward or its router and experts."""
    c = config
    many = (c.experts,) if c.experts else ()
    shapes: layers.Shapes = {
        "wq": ((c.embed, c.kv_heads, c.group, c.head_dim), c.embed),
        "wk": ((c.embed, c.kv_heads, c.head_dim), c.embed),
        "wv": ((c.embed, c.kv_heads, c.head_dim), c.embed),
        "wo": ((c.kv_heads, c.group, c.head_dim, c.embed), c.kv_heads * c.group * c.head_dim),
        "w_gate": ((*many, c.embed, c.ffn), c.embed),
        "w_up": ((*many, c.embed, c.ffn), c.embed),
        "w_down": ((*many, c.ffn, c.embed), c.ffn),
    }
    if c.experts:
        shapes["router"] = ((c.embed, c.experts), c.embed)
    norms = {"ln1": c.embed, "ln2": c.embed, "ln_q": c.head_dim, "ln_k": c.head_dim}
    return layers.matrices(key, shapes) | {name: jnp.ones(width) for name, width in norms.items()}


def _attention(config: Qwen3Config, x: jax.Array, layer: Params) -> jax.Array:
    """Causal grouped-query self-attention, `[B, S, D] -> [B, S, D]`."""
    q = layers.rms_norm(layers.dense("bsd,dhgk->bshgk", x, layer["wq"]), layer["ln_q"])
    k = layers.rms_norm(layers.dense("bsd,dhk->bshk", x, layer["wk"]), layer["ln_k"])
    v = layers.dense("bsd,dhk->bshk", x, layer["wv"])
    q, k = layers.rope(q, config.theta), layers.rope(k, config.theta)
    scores = jnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(jnp.float32) * config.head_dim**-0.5
    weights = layers.softmax(scores, layers.causal(x.shape[1]), x.dtype)
    mixed = jnp.einsum("bhgqs,bshk->bqhgk", weights, v)
    return layers.dense("bqhgk,hgkd->bqd", mixed, layer["wo"])


def _moe(config: Qwen3Config, x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
    """SwiGLU experts, `[B, S, D] -> [B, S, D]`, and the load-balance loss."""
    c = config
    logits = jnp.einsum("bsd,de->bse", x.astype(jnp.float32), layer["router"])
    shares = jax.nn.softmax(logits, axis=-1)
    sent = layers.chosen(shares, c.top)
    weights = shares * sent
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    places = layers.capacity(c.capacity_factor, x.shape[1], c.top, c.experts)
    routing = layers.route(sent, weights, places, x.dtype)
    return layers.experts(x, routing, layer), layers.balance(sent, shares, c.top)


def loss(config: Qwen3Config, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`, plus
    the load-balance loss of a mixture, averaged over the layers and weighted."""
    c = config

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array | None]:
        x = x + _attention(c, layers.rms_norm(x, layer["ln1"]), layer)
        normed = layers.rms_norm(x, layer["ln2"])
        if not c.experts:
            return x + layers.gated(normed, layer["w_gate"], layer["w_up"], layer["w_down"]), None
        mixed, balance = _moe(c, normed, layer)
        return x + mixed, balance

    embed = params["embed"].astype(c.dtype)
    x, balance = jax.lax.scan(block, embed[batch["tokens"]], params["layers"])
    x = layers.rms_norm(x, params["ln_f"])
    if c.tied:
        logits = jnp.einsum("bsd,nd->bsn", x, embed)
    else:
        logits = layers.dense("bsd,dn->bsn", x, params["output"])
    value = training.cross_entropy(logits, batch["targets"])
    return value + c.balance * jnp.mean(balance) if c.experts else value


def train_step(config: Qwen3Config, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: Qwen3Config) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    return training.abstract_tokens(config.batch, config.sequence)


def example_batch(config: Qwen3Config, key: jax.Array) -> Params:
    """A batch of random tokens."""
    bounds = dict.fromkeys(("tokens", "targets"), config.vocabulary)
    return training.example(abstract_batch(config), key, bounds)
