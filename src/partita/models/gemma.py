"""A Gemma-style decoder and its Adam train step, in plain JAX and Optax.

Multi-query or multi-head attention with rotary positions, a GeGLU feed-forward, RMS norms whose
scale is learned as a difference from one, and an embedding that is scaled on the way in and tied
to the output projection. The layers are stacked, for `lax.scan` with rematerialization.
Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, H heads, K head-dim,
F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class GemmaConfig:
    """Sizes of a Gemma. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    sequence: int
    embed: int
    heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    multi_query: bool = False
    """Whether all query heads share one key/value head."""
    scan: bool = True
    """Whether to scan over stacked layers, rematerialized, rather than to unroll them."""
    rope_theta: float = 10_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


PRESETS = {
    "gemma-tiny": GemmaConfig(2, 16, 32, 64, 8, 8, 128, 512, multi_query=True),
    "gemma-2b": GemmaConfig(18, 16, 8192, 2048, 8, 256, 16384, 256128, multi_query=True),
    "gemma-7b": GemmaConfig(28, 16, 8192, 3072, 16, 256, 24576, 256128),
}


def init(config: GemmaConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key = jax.random.split(key)
    layer = functools.partial(_init_layer, c)
    keys = jax.random.split(layer_key, c.layers)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)) * c.embed**-0.5,
        "layers": jax.vmap(layer)(keys) if c.scan else [layer(k) for k in keys],
        "ln_f": jnp.zeros(c.embed),
    }
    return {"params": params, "opt": optimizer(config).init(params)}


def _init_layer(config: GemmaConfig, key: jax.Array) -> Params:
    """One layer: its nine parameter tensors."""
    c = config
    kv = (c.embed, c.head_dim) if c.multi_query else (c.embed, c.heads, c.head_dim)
    shapes = {
        "wq": (c.embed, c.heads, c.head_dim),
        "wk": kv,
        "wv": kv,
        "wo": (c.heads, c.head_dim, c.embed),
        "w_gate": (c.embed, c.ffn),
        "w_up": (c.embed, c.ffn),
        "w_down": (c.ffn, c.embed),
    }
    fan_in = {"wo": c.heads * c.head_dim, "w_down": c.ffn}
    weights = {
        name: jax.random.normal(k, shape) * fan_in.get(name, c.embed) ** -0.5
        for k, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True)
    }
    return weights | {"ln1": jnp.zeros(c.embed), "ln2": jnp.zeros(c.embed)}


def optimizer(config: GemmaConfig) -> optax.GradientTransformation:
    """Adam, with an epsilon above the rounding noise of float32 gradients."""
    return optax.adam(config.learning_rate, eps=1e-6)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm over the embed dimension, computed in float32."""
    x32 = x.astype(jnp.float32)
    rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)
    return (x32 * rms * (1 + scale)).astype(x.dtype)


def _rope(x: jax.Array, theta: float) -> jax.Array:
    """Rotates the two halves of the last dimension by position, `[B, S, ..., K]`."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    angles = jnp.expand_dims(angles, range(1, x.ndim - 2))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _attention(config: GemmaConfig, x: jax.Array, layer: Params) -> jax.Array:
    """Causal self-attention, `[B, S, D] -> [B, S, D]`."""
    h = "" if config.multi_query else "h"
    q = jnp.einsum("bsd,dhk->bshk", x, layer["wq"].astype(x.dtype))
    k = jnp.einsum(f"bsd,d{h}k->bs{h}k", x, layer["wk"].astype(x.dtype))
    v = jnp.einsum(f"bsd,d{h}k->bs{h}k", x, layer["wv"].astype(x.dtype))
    q, k = _rope(q, config.rope_theta), _rope(k, config.rope_theta)
    scores = jnp.einsum(f"bqhk,bs{h}k->bhqs", q, k).astype(jnp.float32) * config.head_dim**-0.5
    position = jnp.arange(x.shape[1])
    causal = position[:, None] >= position[None, :]
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = jnp.einsum(f"bhqs,bs{h}k->bqhk", weights, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, layer["wo"].astype(x.dtype))


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """GeGLU, `[B, S, D] -> [B, S, D]`."""
    gate = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, layer["w_gate"].astype(x.dtype)))
    up = jnp.einsum("bsd,df->bsf", x, layer["w_up"].astype(x.dtype))
    return jnp.einsum("bsf,fd->bsd", gate * up, layer["w_down"].astype(x.dtype))


def loss(config: GemmaConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`."""

    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        x = x + _attention(config, _norm(x, layer["ln1"]), layer)
        return x + _ffn(_norm(x, layer["ln2"]), layer), None

    embed = params["embed"].astype(config.dtype)
    x = embed[batch["tokens"]] * config.embed**0.5
    if config.scan:
        x, _ = jax.lax.scan(jax.checkpoint(block), x, params["layers"])
    else:
        for layer in params["layers"]:
            x, _ = block(x, layer)
    x = _norm(x, params["ln_f"])
    logits = jnp.einsum("bsd,nd->bsn", x, embed).astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target)


def train_step(config: GemmaConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    value, gradients = jax.value_and_grad(lambda p: loss(config, p, batch))(state["params"])
    updates, opt = optimizer(config).update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def abstract_batch(config: GemmaConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def example_batch(config: GemmaConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    shape = (config.batch, config.sequence)
    return {
        name: jax.random.randint(k, shape, 0, config.vocabulary)
        for name, k in zip(("tokens", "targets"), jax.random.split(key), strict=True)
    }
