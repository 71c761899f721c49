"""Gemma 2 and Gemma 3 and their Adam train step, in plain JAX and Optax.

Grouped-query attention whose layers see a window of the last tokens, but for every second (Gemma
2) or sixth (Gemma 3), which see all; norms before and behind both parts of a layer; GeGLU. Gemma 2
caps scores and logits, Gemma 3 norms queries and keys. Window and rotary base are scanned over
with the stacked layers, so that all layers are one loop body, rematerialized; a window masks
scores and saves no time. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, H key/value heads,
G query heads per key/value head, K head-dim, F ffn, N vocabulary.
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
class Gemma2Config:
    """Sizes of a Gemma 2 or 3. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    sequence: int
    embed: int
    kv_heads: int
    group: int
    """Query heads that share a key/value head."""
    head_dim: int
    ffn: int
    vocabulary: int
    window: int
    """Tokens that a layer sees, but for every `period`-th, which sees all."""
    period: int
    query_scale: float
    """Scores are divided by its root."""
    qk_norm: bool = False
    score_cap: float = 0.0
    """What the size of scores tends to, or 0 for no cap."""
    logit_cap: float = 0.0
    theta: float = 10_000.0
    """Rotary base of the layers that see all."""
    window_theta: float = 10_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


def _gemma2(
    layers: int, embed: int, kv_heads: int, head_dim: int, ffn: int, query_scale: float
) -> Gemma2Config:
    sizes = (layers, 16, 8192, embed, kv_heads, 2, head_dim, ffn, 256_000)
    return Gemma2Config(*sizes, 4096, 2, query_scale, score_cap=50.0, logit_cap=30.0)


def _gemma3(
    layers: int,
    embed: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    group: int = 2,
    vocabulary: int = 262_208,
    window: int = 1024,
    query_scale: float = 256,
) -> Gemma2Config:
    sizes = (layers, 16, 8192, embed, kv_heads, group, head_dim, ffn, vocabulary)
    return Gemma2Config(*sizes, window, 6, query_scale, qk_norm=True, theta=1e6)


# Gemma 2: table 1 of arXiv 2408.00118, and config.json of google/gemma-2-{2b,9b,27b} (head_dim,
# query_pre_attn_scalar, sliding_window, attn_logit_softcapping, final_logit_softcapping).
# Gemma 3: table 1 of arXiv 2503.19786, and the text_config of google/gemma-3-{1b,4b,12b,27b}-pt.
# The language models only; the vision encoder of Gemma 3 is not here.
PRESETS = {
    "gemma2-tiny": Gemma2Config(
        2, 16, 32, 64, 4, 2, 8, 128, 512, 8, 2, 8, score_cap=50.0, logit_cap=30.0
    ),
    "gemma2-2b": _gemma2(26, 2304, 4, 256, 9216, 256),
    "gemma2-9b": _gemma2(42, 3584, 8, 256, 14336, 256),
    "gemma2-27b": _gemma2(46, 4608, 16, 128, 36864, 144),
    "gemma3-tiny": Gemma2Config(3, 16, 32, 64, 4, 2, 8, 128, 512, 8, 3, 8, qk_norm=True, theta=1e6),
    "gemma3-1b": _gemma3(26, 1152, 1, 256, 6912, group=4, vocabulary=262_144, window=512),
    "gemma3-4b": _gemma3(34, 2560, 4, 256, 10240),
    "gemma3-12b": _gemma3(48, 3840, 8, 256, 15360),
    "gemma3-27b": _gemma3(62, 5376, 16, 128, 21504, query_scale=168),
}

NORMS = ("ln1", "ln1_after", "ln2", "ln2_after")


def init(config: Gemma2Config, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key = jax.random.split(key)
    layer = functools.partial(_init_layer, c)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)) * c.embed**-0.5,
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": jnp.zeros(c.embed),
    }
    return training.state(params, c.learning_rate)


def _init_layer(config: Gemma2Config, key: jax.Array) -> Params:
    """One layer: its seven matrices and its norms."""
    c = config
    shapes: layers.Shapes = {
        "wq": ((c.embed, c.kv_heads, c.group, c.head_dim), c.embed),
        "wk": ((c.embed, c.kv_heads, c.head_dim), c.embed),
        "wv": ((c.embed, c.kv_heads, c.head_dim), c.embed),
        "wo": ((c.kv_heads, c.group, c.head_dim, c.embed), c.kv_heads * c.group * c.head_dim),
        "w_gate": ((c.embed, c.ffn), c.embed),
        "w_up": ((c.embed, c.ffn), c.embed),
        "w_down": ((c.ffn, c.embed), c.ffn),
    }
    params = layers.matrices(key, shapes) | {name: jnp.zeros(c.embed) for name in NORMS}
    if c.qk_norm:
        params |= {"ln_q": jnp.zeros(c.head_dim), "ln_k": jnp.zeros(c.head_dim)}
    return params


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm, whose scale is learned as a difference from one."""
    return layers.rms_norm(x, 1 + scale)


def _cap(x: jax.Array, cap: float) -> jax.Array:
    return cap * jnp.tanh(x / cap) if cap else x


def _attention(
    config: Gemma2Config, x: jax.Array, layer: Params, window: jax.Array, theta: jax.Array
) -> jax.Array:
    """Causal grouped-query self-attention, `[B, S, D] -> [B, S, D]`."""
    q = layers.dense("bsd,dhgk->bshgk", x, layer["wq"])
    k = layers.dense("bsd,dhk->bshk", x, layer["wk"])
    v = layers.dense("bsd,dhk->bshk", x, layer["wv"])
    if config.qk_norm:
        q, k = _norm(q, layer["ln_q"]), _norm(k, layer["ln_k"])
    q, k = layers.rope(q, theta), layers.rope(k, theta)
    scores = jnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(jnp.float32)
    scores = _cap(scores * config.query_scale**-0.5, config.score_cap)
    weights = layers.softmax(scores, layers.causal(x.shape[1], window), x.dtype)
    mixed = jnp.einsum("bhgqs,bshk->bqhgk", weights, v)
    return layers.dense("bqhgk,hgkd->bqd", mixed, layer["wo"])


def loss(config: Gemma2Config, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`."""
    c = config

    @jax.checkpoint
    def block(x: jax.Array, inputs: tuple[Params, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        layer, window, theta = inputs
        mixed = _attention(c, _norm(x, layer["ln1"]), layer, window, theta)
        x = x + _norm(mixed, layer["ln1_after"])
        weights = (layer["w_gate"], layer["w_up"], layer["w_down"])
        out = layers.gated(_norm(x, layer["ln2"]), *weights, activation=jax.nn.gelu)
        return x + _norm(out, layer["ln2_after"]), None

    embed = params["embed"].astype(c.dtype)
    x = embed[batch["tokens"]] * c.embed**0.5
    sees_all = jnp.arange(1, c.layers + 1) % c.period == 0
    window = jnp.where(sees_all, x.shape[1], c.window)
    theta = jnp.where(sees_all, c.theta, c.window_theta)
    x, _ = jax.lax.scan(block, x, (params["layers"], window, theta))
    x = _norm(x, params["ln_f"])
    logits = jnp.einsum("bsd,nd->bsn", x, embed).astype(jnp.float32)
    return training.cross_entropy(_cap(logits, c.logit_cap), batch["targets"])


def train_step(config: Gemma2Config, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: Gemma2Config) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    return training.abstract_tokens(config.batch, config.sequence)


def example_batch(config: Gemma2Config, key: jax.Array) -> Params:
    """A batch of random tokens."""
    bounds = dict.fromkeys(("tokens", "targets"), config.vocabulary)
    return training.example(abstract_batch(config), key, bounds)
