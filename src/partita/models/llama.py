"""A Llama-3-style decoder and its Adam train step, in plain JAX and Optax.

Grouped-query attention with rotary positions, a SwiGLU feed-forward, RMS norms, and an output
projection of its own. The layers are either stacked, for `lax.scan` with rematerialization, or
unrolled. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, H key/value heads,
G query heads per key/value head, K head-dim, F ffn, N vocabulary.
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
class LlamaConfig:
    """Sizes of a Llama. All are numbers of elements; `dtype` is the compute type."""

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
    scan: bool = True
    """Whether to scan over stacked layers, rematerialized, rather than to unroll them."""
    rope_theta: float = 500_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


# Table 3 of arXiv 2407.21783, and config.json of meta-llama/Llama-3.1-{8B,70B,405B}. How positions
# are scaled for long contexts, which changes no shape, is left out.
PRESETS = {
    "llama-tiny": LlamaConfig(2, 16, 32, 64, 8, 2, 8, 128, 512),
    "llama-tiny-unrolled": LlamaConfig(2, 16, 32, 64, 8, 2, 8, 128, 512, scan=False),
    "llama3-8b": LlamaConfig(32, 16, 8192, 4096, 8, 4, 128, 14336, 128256),
    "llama3-70b": LlamaConfig(80, 16, 8192, 8192, 8, 8, 128, 28672, 128256),
    "llama3-405b": LlamaConfig(126, 16, 8192, 16384, 8, 16, 128, 53248, 128256),
}


def init(config: LlamaConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key, output_key = jax.random.split(key, 3)
    layer = functools.partial(_init_layer, c)
    keys = jax.random.split(layer_key, c.layers)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)),
        "layers": jax.vmap(layer)(keys) if c.scan else [layer(k) for k in keys],
        "ln_f": jnp.ones(c.embed),
        "output": jax.random.normal(output_key, (c.embed, c.vocabulary)) * c.embed**-0.5,
    }
    return {"params": params, "opt": optimizer(config).init(params)}


def _init_layer(config: LlamaConfig, key: jax.Array) -> Params:
    """One layer: its nine parameter tensors."""
    c = config
    shapes = {
        "wq": (c.embed, c.kv_heads, c.group, c.head_dim),
        "wk": (c.embed, c.kv_heads, c.head_dim),
        "wv": (c.embed, c.kv_heads, c.head_dim),
        "wo": (c.kv_heads, c.group, c.head_dim, c.embed),
        "w_gate": (c.embed, c.ffn),
        "w_up": (c.embed, c.ffn),
        "w_down": (c.ffn, c.embed),
    }
    fan_in = {"wo": c.kv_heads * c.group * c.head_dim, "w_down": c.ffn}
    weights = {
        name: jax.random.normal(k, shape) * fan_in.get(name, c.embed) ** -0.5
        for k, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True)
    }
    return weights | {"ln1": jnp.ones(c.embed), "ln2": jnp.ones(c.embed)}


def optimizer(config: LlamaConfig) -> optax.GradientTransformation:
    """Adam, with an epsilon above the rounding noise of float32 gradients."""
    return optax.adam(config.learning_rate, eps=1e-6)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm over the embed dimension, computed in float32."""
    x32 = x.astype(jnp.float32)
    rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-5)
    return (x32 * rms * scale).astype(x.dtype)


def _rope(x: jax.Array, theta: float) -> jax.Array:
    """Rotates the two halves of the last dimension by position, `[B, S, ..., K]`."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    angles = jnp.expand_dims(angles, range(1, x.ndim - 2))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _attention(config: LlamaConfig, x: jax.Array, layer: Params) -> jax.Array:
    """Causal grouped-query self-attention, `[B, S, D] -> [B, S, D]`."""
    q = jnp.einsum("bsd,dhgk->bshgk", x, layer["wq"].astype(x.dtype))
    k = jnp.einsum("bsd,dhk->bshk", x, layer["wk"].astype(x.dtype))
    v = jnp.einsum("bsd,dhk->bshk", x, layer["wv"].astype(x.dtype))
    q, k = _rope(q, config.rope_theta), _rope(k, config.rope_theta)
    scores = jnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(jnp.float32) * config.head_dim**-0.5
    position = jnp.arange(x.shape[1])
    causal = position[:, None] >= position[None, :]
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhgqs,bshk->bqhgk", weights, v)
    return jnp.einsum("bqhgk,hgkd->bqd", mixed, layer["wo"].astype(x.dtype))


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """SwiGLU, `[B, S, D] -> [B, S, D]`."""
    gate = jax.nn.silu(jnp.einsum("bsd,df->bsf", x, layer["w_gate"].astype(x.dtype)))
    up = jnp.einsum("bsd,df->bsf", x, layer["w_up"].astype(x.dtype))
    return jnp.einsum("bsf,fd->bsd", gate * up, layer["w_down"].astype(x.dtype))


def loss(config: LlamaConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`."""

    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        x = x + _attention(config, _norm(x, layer["ln1"]), layer)
        return x + _ffn(_norm(x, layer["ln2"]), layer), None

    x = params["embed"].astype(config.dtype)[batch["tokens"]]
    if config.scan:
        x, _ = jax.lax.scan(jax.checkpoint(block), x, params["layers"])
    else:
        for layer in params["layers"]:
            x, _ = block(x, layer)
    x = _norm(x, params["ln_f"])
    logits = jnp.einsum("bsd,dn->bsn", x, params["output"].astype(x.dtype)).astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target)


def train_step(config: LlamaConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    value, gradients = jax.value_and_grad(lambda p: loss(config, p, batch))(state["params"])
    updates, opt = optimizer(config).update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def abstract_batch(config: LlamaConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def example_batch(config: LlamaConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    shape = (config.batch, config.sequence)
    return {
        name: jax.random.randint(k, shape, 0, config.vocabulary)
        for name, k in zip(("tokens", "targets"), jax.random.split(key), strict=True)
    }
