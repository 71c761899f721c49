"""A mixture-of-experts decoder, as Mixtral and DeepSeekMoE, and its Adam train step.

Every feed-forward is a mixture: a router sends each token to its top experts, each with a fixed
capacity per sequence (a token beyond it skips the expert), by one-hot dispatch and combine
tensors; some models add a shared expert that sees every token. A loss term balances the load.
The rest of the layer is Llama's. (DeepSeekMoE's first layer, dense there, is a mixture here.)
The layers are stacked, for `lax.scan` with rematerialization. Parameters are kept in float32 and
used in `config.dtype`; the router computes in float32.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, H key/value heads,
G query heads per key/value head, K head-dim, E experts, C capacity, F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Sizes of a mixture of experts. All are numbers of elements; `dtype` is the compute type."""

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
    shared_ffn: int = 0
    """Width of the expert that sees every token, or 0 for none."""
    normalize: bool = True
    """Whether the weights of a token's experts are scaled to sum to one."""
    capacity_factor: float = 1.25
    """Capacity of an expert, relative to an even load."""
    balance: float = 0.01
    """Weight of the load-balance loss."""
    rope_theta: float = 10_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that an expert takes."""
        return math.ceil(self.capacity_factor * self.sequence * self.top / self.experts)


# arXiv 2401.04088 and config.json of mistralai/Mixtral-{8x7B,8x22B}-v0.1; arXiv 2401.06066.
PRESETS = {
    "moe-tiny": MoEConfig(
        2, 16, 32, 64, 8, 2, 8, 8, 2, 64, 512, shared_ffn=128, capacity_factor=1.0
    ),
    "mixtral-8x7b": MoEConfig(
        32, 16, 4096, 4096, 8, 4, 128, 8, 2, 14336, 32000, rope_theta=1_000_000.0
    ),
    "mixtral-8x22b": MoEConfig(
        56, 16, 4096, 6144, 8, 6, 128, 8, 2, 16384, 32000, rope_theta=1_000_000.0
    ),
    "deepseek-moe-16b": MoEConfig(
        28, 16, 4096, 2048, 16, 1, 128, 64, 6, 1408, 102400, shared_ffn=2816, normalize=False
    ),
}


def init(config: MoEConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, embed_key, output_key = jax.random.split(key, 3)
    layer = functools.partial(_init_layer, c)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)),
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": jnp.ones(c.embed),
        "output": jax.random.normal(output_key, (c.embed, c.vocabulary)) * c.embed**-0.5,
    }
    return {"params": params, "opt": optimizer(config).init(params)}


def _init_layer(config: MoEConfig, key: jax.Array) -> Params:
    """One layer: its attention, router, experts, and shared expert if it has one."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {
        "wq": (c.embed, c.kv_heads, c.group, c.head_dim),
        "wk": (c.embed, c.kv_heads, c.head_dim),
        "wv": (c.embed, c.kv_heads, c.head_dim),
        "wo": (c.kv_heads, c.group, c.head_dim, c.embed),
        "router": (c.embed, c.experts),
        "w_gate": (c.experts, c.embed, c.ffn),
        "w_up": (c.experts, c.embed, c.ffn),
        "w_down": (c.experts, c.ffn, c.embed),
    }
    if c.shared_ffn:
        shapes |= {
            "shared_gate": (c.embed, c.shared_ffn),
            "shared_up": (c.embed, c.shared_ffn),
            "shared_down": (c.shared_ffn, c.embed),
        }
    fan_in = {
        "wo": c.kv_heads * c.group * c.head_dim,
        "w_down": c.ffn,
        "shared_down": c.shared_ffn,
    }
    weights = {
        name: jax.random.normal(k, shape) * fan_in.get(name, c.embed) ** -0.5
        for k, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True)
    }
    return weights | {"ln1": jnp.ones(c.embed), "ln2": jnp.ones(c.embed)}


def optimizer(config: MoEConfig) -> optax.GradientTransformation:
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


def _attention(config: MoEConfig, x: jax.Array, layer: Params) -> jax.Array:
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


def _route(config: MoEConfig, x: jax.Array, router: jax.Array) -> tuple[jax.Array, ...]:
    """Where each token goes, and the load-balance loss.

    Returns:
      dispatch, `[B, S, E, C]`: one where a token takes a place of an expert, else zero.
      combine, `[B, S, E, C]`: the same, times the weight of the expert for the token.
      balance: a scalar, one where the load is even.
    """
    c = config
    logits = jnp.einsum("bsd,de->bse", x.astype(jnp.float32), router)
    probabilities = jax.nn.softmax(logits, axis=-1)
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(probabilities), c.top)
    sent = jax.nn.one_hot(chosen, c.experts, dtype=jnp.int32).sum(axis=-2)
    weights = probabilities * sent
    if c.normalize:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    # Places are counted from one, in the order of the sequence: those not sent there have place
    # zero, which like one beyond the capacity becomes a row of zeros.
    place = sent * jnp.cumsum(sent, axis=1)
    dispatch = jax.nn.one_hot(place - 1, c.capacity, dtype=jnp.float32)
    combine = dispatch * weights[..., None]
    load = jnp.mean(sent.astype(jnp.float32), axis=(0, 1)) / c.top
    balance = c.experts * jnp.sum(load * jnp.mean(probabilities, axis=(0, 1)))
    return dispatch.astype(x.dtype), combine.astype(x.dtype), balance


def _moe(config: MoEConfig, x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
    """SwiGLU experts, `[B, S, D] -> [B, S, D]`, and the load-balance loss."""
    dispatch, combine, balance = _route(config, x, layer["router"])
    taken = jnp.einsum("bsec,bsd->becd", dispatch, x)
    gate = jnp.einsum("becd,edf->becf", taken, layer["w_gate"].astype(x.dtype))
    up = jnp.einsum("becd,edf->becf", taken, layer["w_up"].astype(x.dtype))
    hidden = jax.nn.silu(gate) * up
    out = jnp.einsum("becf,efd->becd", hidden, layer["w_down"].astype(x.dtype))
    mixed = jnp.einsum("bsec,becd->bsd", combine, out)
    if config.shared_ffn:
        gate = jnp.einsum("bsd,df->bsf", x, layer["shared_gate"].astype(x.dtype))
        up = jnp.einsum("bsd,df->bsf", x, layer["shared_up"].astype(x.dtype))
        hidden = jax.nn.silu(gate) * up
        mixed = mixed + jnp.einsum("bsf,fd->bsd", hidden, layer["shared_down"].astype(x.dtype))
    return mixed, balance


def loss(config: MoEConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`,
    plus the load-balance loss, averaged over the layers and weighted."""

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, jax.Array]:
        x = x + _attention(config, _norm(x, layer["ln1"]), layer)
        mixed, balance = _moe(config, _norm(x, layer["ln2"]), layer)
        return x + mixed, balance

    x = params["embed"].astype(config.dtype)[batch["tokens"]]
    x, balance = jax.lax.scan(block, x, params["layers"])
    x = _norm(x, params["ln_f"])
    logits = jnp.einsum("bsd,dn->bsn", x, params["output"].astype(x.dtype)).astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target) + config.balance * jnp.mean(balance)


def train_step(config: MoEConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    value, gradients = jax.value_and_grad(lambda p: loss(config, p, batch))(state["params"])
    updates, opt = optimizer(config).update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def abstract_batch(config: MoEConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def example_batch(config: MoEConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    shape = (config.batch, config.sequence)
    return {
        name: jax.random.randint(k, shape, 0, config.vocabulary)
        for name, k in zip(("tokens", "targets"), jax.random.split(key), strict=True)
    }
