"""A GPT-style decoder with unrolled layers and its Adam train step, in plain JAX and Optax.

The model knows nothing of how it is partitioned. Parameters are kept in float32 and used in
`config.dtype`; the embedding is tied to the output projection; there is no positional
embedding (the causal mask orders the tokens). Every layer has eight parameter tensors.

Shape legend: B batch, S sequence, D embed, H heads, K query/key head-dim, V value head-dim,
F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    sequence: int
    embed: int
    heads: int
    qk_dim: int
    v_dim: int
    ffn: int
    vocabulary: int
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


PRESETS = {
    "gpt-tiny": GPTConfig(2, 16, 32, 64, 8, 8, 8, 256, 512),
    "gpt-small": GPTConfig(12, 32, 1024, 768, 12, 64, 64, 3072, 50304),
    "gpt-24l": GPTConfig(24, 64, 1024, 2048, 16, 128, 128, 8192, 50304),
    "gpt-175b": GPTConfig(96, 512, 2048, 12288, 96, 128, 128, 49152, 50304),
}


def init(config: GPTConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    shapes = {
        "wq": (c.embed, c.heads, c.qk_dim),
        "wk": (c.embed, c.heads, c.qk_dim),
        "wv": (c.embed, c.heads, c.v_dim),
        "wo": (c.heads, c.v_dim, c.embed),
        "w_in": (c.embed, c.ffn),
        "w_out": (c.ffn, c.embed),
    }
    keys = iter(jax.random.split(key, c.layers * len(shapes) + 1))

    def matrix(shape: tuple[int, ...], fan_in: int) -> jax.Array:
        values: jax.Array = jax.random.normal(next(keys), shape) * fan_in**-0.5
        return values

    def layer() -> Params:
        fan_in = {"wo": c.heads * c.v_dim, "w_out": c.ffn}
        weights = {name: matrix(shape, fan_in.get(name, c.embed)) for name, shape in shapes.items()}
        return weights | {"ln1": jnp.ones(c.embed), "ln2": jnp.ones(c.embed)}

    params = {
        "embed": matrix((c.vocabulary, c.embed), c.embed),
        "layers": [layer() for _ in range(c.layers)],
        "ln_f": jnp.ones(c.embed),
    }
    return {"params": params, "opt": optimizer(config).init(params)}


def optimizer(config: GPTConfig) -> optax.GradientTransformation:
    """Adam. Epsilon is above the rounding noise of float32 gradients, so that two runs that sum
    in different orders take the same steps also where a gradient is almost zero."""
    return optax.adam(config.learning_rate, eps=1e-6)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm over the embed dimension, computed in float32."""
    x32 = x.astype(jnp.float32)
    rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)
    return (x32 * rms * scale).astype(x.dtype)


def _attention(x: jax.Array, layer: Params) -> jax.Array:
    """Causal self-attention, `[B, S, D] -> [B, S, D]`."""
    q = jnp.einsum("bsd,dhk->bshk", x, layer["wq"].astype(x.dtype))
    k = jnp.einsum("bsd,dhk->bshk", x, layer["wk"].astype(x.dtype))
    v = jnp.einsum("bsd,dhv->bshv", x, layer["wv"].astype(x.dtype))
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    sequence = x.shape[1]
    causal = jnp.arange(sequence)[:, None] >= jnp.arange(sequence)[None, :]
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqs,bshv->bqhv", weights, v)
    return jnp.einsum("bqhv,hvd->bqd", mixed, layer["wo"].astype(x.dtype))


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """Two matrices around a GELU, `[B, S, D] -> [B, S, D]`."""
    hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, layer["w_in"].astype(x.dtype)))
    return jnp.einsum("bsf,fd->bsd", hidden, layer["w_out"].astype(x.dtype))


def loss(config: GPTConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`."""
    embed = params["embed"].astype(config.dtype)
    x = embed[batch["tokens"]]
    for layer in params["layers"]:
        x = x + _attention(_norm(x, layer["ln1"]), layer)
        x = x + _ffn(_norm(x, layer["ln2"]), layer)
    x = _norm(x, params["ln_f"])
    logits = jnp.einsum("bsd,nd->bsn", x, embed).astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target)


def train_step(config: GPTConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    value, gradients = jax.value_and_grad(lambda p: loss(config, p, batch))(state["params"])
    updates, opt = optimizer(config).update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def abstract_batch(config: GPTConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def example_batch(config: GPTConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    shape = (config.batch, config.sequence)
    return {
        name: jax.random.randint(k, shape, 0, config.vocabulary)
        for name, k in zip(("tokens", "targets"), jax.random.split(key), strict=True)
    }
