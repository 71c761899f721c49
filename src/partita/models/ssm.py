"""A gated linear recurrence, as Hawk's, and its Adam train step, in plain JAX and Optax.

A state-space model whose diagonal transition depends on the input (RG-LRU): where a transformer
has attention, every layer has a recurrence over the sequence, run as an associative scan, beside
a gate; its own gates are block-diagonal. (Hawk's short convolution is left out.) The feed-forward
is a GeGLU and the embedding is tied to the output projection. The layers are stacked, for
`lax.scan` with rematerialization. Parameters are kept in float32 and used in `config.dtype`; the
recurrence computes in float32.

Shape legend: L layers, B batch, S sequence, D embed, H blocks of the recurrent state, K (and J)
width of a block, F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]

SHARPNESS = 8.0
"""Exponent of the transition where its gate is fully open."""


@dataclasses.dataclass(frozen=True)
class SSMConfig:
    """Sizes of a linear recurrence. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    sequence: int
    embed: int
    blocks: int
    """Blocks of the recurrent state, whose gates are independent."""
    block_dim: int
    ffn: int
    vocabulary: int
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


PRESETS = {
    "ssm-tiny": SSMConfig(2, 16, 32, 64, 8, 8, 128, 512),
    "ssm-1b": SSMConfig(24, 128, 2048, 2048, 16, 160, 6144, 32000),
}


def init(config: SSMConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key = jax.random.split(key)
    layer = functools.partial(_init_layer, c)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)) * c.embed**-0.5,
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": jnp.ones(c.embed),
    }
    return {"params": params, "opt": optimizer(config).init(params)}


def _init_layer(config: SSMConfig, key: jax.Array) -> Params:
    """One layer. Its transitions, gates open, are between 0.9 and 0.999."""
    c = config
    shapes = {
        "w_branch": (c.embed, c.blocks, c.block_dim),
        "w_x": (c.embed, c.blocks, c.block_dim),
        "w_a": (c.blocks, c.block_dim, c.block_dim),
        "w_i": (c.blocks, c.block_dim, c.block_dim),
        "w_o": (c.blocks, c.block_dim, c.embed),
        "w_gate": (c.embed, c.ffn),
        "w_up": (c.embed, c.ffn),
        "w_down": (c.ffn, c.embed),
    }
    fan_in = {
        "w_a": c.block_dim,
        "w_i": c.block_dim,
        "w_o": c.blocks * c.block_dim,
        "w_down": c.ffn,
    }
    state = (c.blocks, c.block_dim)
    decay_key, *keys = jax.random.split(key, len(shapes) + 1)
    weights = {
        name: jax.random.normal(k, shape) * fan_in.get(name, c.embed) ** -0.5
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    transition = jax.random.uniform(decay_key, state, minval=0.9, maxval=0.999)
    return weights | {
        "decay": jnp.log(jnp.expm1(-jnp.log(transition) / SHARPNESS)),
        "b_a": jnp.zeros(state),
        "b_i": jnp.zeros(state),
        "ln1": jnp.ones(c.embed),
        "ln2": jnp.ones(c.embed),
    }


def optimizer(config: SSMConfig) -> optax.GradientTransformation:
    """Adam, with an epsilon above the rounding noise of float32 gradients."""
    return optax.adam(config.learning_rate, eps=1e-6)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm over the embed dimension, computed in float32."""
    x32 = x.astype(jnp.float32)
    rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)
    return (x32 * rms * scale).astype(x.dtype)


def _recurrence(u: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    """The states h_t = a_t h_(t-1) + sqrt(1 - a_t^2) i_t u_t, `[B, S, H, K] -> [B, S, H, K]`."""

    def gate(w: str, b: str) -> jax.Array:
        z = jnp.einsum("bshj,hjk->bshk", u, layer[w].astype(u.dtype))
        return jax.nn.sigmoid(z.astype(jnp.float32) + layer[b])

    def combine(
        first: tuple[jax.Array, jax.Array], then: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return first[0] * then[0], then[0] * first[1] + then[1]

    log_a = -SHARPNESS * jax.nn.softplus(layer["decay"]) * gate("w_a", "b_a")
    x = jnp.sqrt(-jnp.expm1(2 * log_a)) * gate("w_i", "b_i") * u.astype(jnp.float32)
    states: jax.Array = jax.lax.associative_scan(combine, (jnp.exp(log_a), x), axis=1)[1]
    return states.astype(u.dtype)


def _mix(x: jax.Array, layer: Params) -> jax.Array:
    """A recurrence beside a GELU, multiplied, `[B, S, D] -> [B, S, D]`."""
    branch = jax.nn.gelu(jnp.einsum("bsd,dhk->bshk", x, layer["w_branch"].astype(x.dtype)))
    states = _recurrence(jnp.einsum("bsd,dhk->bshk", x, layer["w_x"].astype(x.dtype)), layer)
    return jnp.einsum("bshk,hkd->bsd", branch * states, layer["w_o"].astype(x.dtype))


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """GeGLU, `[B, S, D] -> [B, S, D]`."""
    gate = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, layer["w_gate"].astype(x.dtype)))
    up = jnp.einsum("bsd,df->bsf", x, layer["w_up"].astype(x.dtype))
    return jnp.einsum("bsf,fd->bsd", gate * up, layer["w_down"].astype(x.dtype))


def loss(config: SSMConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`."""

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        x = x + _mix(_norm(x, layer["ln1"]), layer)
        return x + _ffn(_norm(x, layer["ln2"]), layer), None

    embed = params["embed"].astype(config.dtype)
    x, _ = jax.lax.scan(block, embed[batch["tokens"]], params["layers"])
    x = _norm(x, params["ln_f"])
    logits = jnp.einsum("bsd,nd->bsn", x, embed).astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target)


def train_step(config: SSMConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    value, gradients = jax.value_and_grad(lambda p: loss(config, p, batch))(state["params"])
    updates, opt = optimizer(config).update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def abstract_batch(config: SSMConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def example_batch(config: SSMConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    shape = (config.batch, config.sequence)
    return {
        name: jax.random.randint(k, shape, 0, config.vocabulary)
        for name, k in zip(("tokens", "targets"), jax.random.split(key), strict=True)
    }
