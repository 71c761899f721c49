"""A decoder like DeepSeek-V3 and its Adam train step, in plain JAX and Optax.

Multi-head latent attention: queries, keys and values of all heads come from narrow latents, and
one rotary key is shared by all heads. Behind a few dense layers, every feed-forward is a mixture
of experts with a fixed capacity (see `partita.models.moe`) and a shared expert: logistic scores,
of which the best groups of experts, and of those the best experts, are taken. A bias that balances
the load takes part in the choice only; it has no gradient, and is not changed here. Dense layers
and mixtures are stacked, for two `lax.scan`s with rematerialization. There is no multi-token
prediction. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, S (and Q, of the queries) sequence, D embed, R rank of a latent,
H heads, K head-dim of queries and keys without positions, P with positions, V of values, E experts,
F ffn, N vocabulary.
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
class DeepSeekConfig:
    """Sizes of a DeepSeek-V3. All are numbers of elements; `dtype` is the compute type."""

    dense_layers: int
    layers: int
    """Layers with experts, behind the dense ones."""
    batch: int
    sequence: int
    embed: int
    heads: int
    q_rank: int
    kv_rank: int
    head_dim: int
    rope_dim: int
    v_dim: int
    dense_ffn: int
    experts: int
    top: int
    """Experts that a token is sent to."""
    groups: int
    """Groups of experts, of which a token goes to `top_groups`."""
    top_groups: int
    ffn: int
    """Width of one expert."""
    shared_ffn: int
    vocabulary: int
    scale: float = 2.5
    """Of the weights of a token's experts, which sum to one."""
    capacity_factor: float = 1.25
    theta: float = 10_000.0
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


# Section 4.2 of arXiv 2412.19437, and config.json of deepseek-ai/DeepSeek-V3.
PRESETS = {
    "deepseek-tiny": DeepSeekConfig(
        1, 2, 16, 32, 64, 8, 32, 16, 8, 4, 8, 128, 8, 2, 4, 2, 64, 64, 512, capacity_factor=1.0
    ),
    "deepseek-v3": DeepSeekConfig(
        dense_layers=3,
        layers=58,
        batch=64,
        sequence=4096,
        embed=7168,
        heads=128,
        q_rank=1536,
        kv_rank=512,
        head_dim=128,
        rope_dim=64,
        v_dim=128,
        dense_ffn=18432,
        experts=256,
        top=8,
        groups=8,
        top_groups=4,
        ffn=2048,
        shared_ffn=2048,
        vocabulary=129_280,
    ),
}


def init(config: DeepSeekConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    keys = jax.random.split(key, 4)
    dense, mixture = (functools.partial(_init_layer, c, kind) for kind in (_dense, _mixture))
    params = {
        "embed": jax.random.normal(keys[0], (c.vocabulary, c.embed)),
        "dense": jax.vmap(dense)(jax.random.split(keys[1], c.dense_layers)),
        "layers": jax.vmap(mixture)(jax.random.split(keys[2], c.layers)),
        "ln_f": jnp.ones(c.embed),
    } | layers.matrices(keys[3], {"output": ((c.embed, c.vocabulary), c.embed)})
    return training.state(params, c.learning_rate)


def _dense(config: DeepSeekConfig) -> layers.Shapes:
    c = config
    return {
        "w_gate": ((c.embed, c.dense_ffn), c.embed),
        "w_up": ((c.embed, c.dense_ffn), c.embed),
        "w_down": ((c.dense_ffn, c.embed), c.dense_ffn),
    }


def _mixture(config: DeepSeekConfig) -> layers.Shapes:
    c = config
    return {
        "router": ((c.embed, c.experts), c.embed),
        "w_gate": ((c.experts, c.embed, c.ffn), c.embed),
        "w_up": ((c.experts, c.embed, c.ffn), c.embed),
        "w_down": ((c.experts, c.ffn, c.embed), c.ffn),
        "shared_gate": ((c.embed, c.shared_ffn), c.embed),
        "shared_up": ((c.embed, c.shared_ffn), c.embed),
        "shared_down": ((c.shared_ffn, c.embed), c.shared_ffn),
    }


def _init_layer(config: DeepSeekConfig, kind: Any, key: jax.Array) -> Params:
    """One layer: its attention, and what of a feed-forward its kind has."""
    c = config
    shapes: layers.Shapes = {
        "q_latent": ((c.embed, c.q_rank), c.embed),
        "wq": ((c.q_rank, c.heads, c.head_dim + c.rope_dim), c.q_rank),
        "kv_latent": ((c.embed, c.kv_rank), c.embed),
        "k_rope": ((c.embed, c.rope_dim), c.embed),
        "wk": ((c.kv_rank, c.heads, c.head_dim), c.kv_rank),
        "wv": ((c.kv_rank, c.heads, c.v_dim), c.kv_rank),
        "wo": ((c.heads, c.v_dim, c.embed), c.heads * c.v_dim),
    }
    norms = {"ln1": c.embed, "ln2": c.embed, "ln_q": c.q_rank, "ln_kv": c.kv_rank}
    params = layers.matrices(key, shapes | kind(c))
    params |= {name: jnp.ones(width) for name, width in norms.items()}
    return params | ({"balance": jnp.zeros(c.experts)} if "router" in params else {})


def _attention(config: DeepSeekConfig, x: jax.Array, layer: Params) -> jax.Array:
    """Causal multi-head latent attention, `[B, S, D] -> [B, S, D]`."""
    c = config
    q_latent = layers.rms_norm(layers.dense("bsd,dr->bsr", x, layer["q_latent"]), layer["ln_q"])
    q = layers.dense("bsr,rhk->bshk", q_latent, layer["wq"])
    q, q_rope = q[..., : c.head_dim], layers.rope(q[..., c.head_dim :], c.theta)
    kv_latent = layers.rms_norm(layers.dense("bsd,dr->bsr", x, layer["kv_latent"]), layer["ln_kv"])
    k = layers.dense("bsr,rhk->bshk", kv_latent, layer["wk"])
    v = layers.dense("bsr,rhv->bshv", kv_latent, layer["wv"])
    k_rope = layers.rope(layers.dense("bsd,dp->bsp", x, layer["k_rope"]), c.theta)
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) + jnp.einsum("bqhp,bsp->bhqs", q_rope, k_rope)
    scores = scores.astype(jnp.float32) * (c.head_dim + c.rope_dim) ** -0.5
    weights = layers.softmax(scores, layers.causal(x.shape[1]), x.dtype)
    mixed = jnp.einsum("bhqs,bshv->bqhv", weights, v)
    return layers.dense("bqhv,hvd->bqd", mixed, layer["wo"])


def _route(config: DeepSeekConfig, x: jax.Array, layer: Params) -> layers.Routing:
    """Where each token goes: to experts of the groups whose two best experts sum highest."""
    c = config
    scores = jax.nn.sigmoid(jnp.einsum("bsd,de->bse", x.astype(jnp.float32), layer["router"]))
    biased = jax.lax.stop_gradient(scores + layer["balance"])
    grouped = biased.reshape(*biased.shape[:-1], c.groups, -1)
    best = jax.lax.top_k(grouped, 2)[0].sum(axis=-1)
    allowed = layers.chosen(best, c.top_groups)[..., None] == 1
    sent = layers.chosen(jnp.where(allowed, grouped, 0.0).reshape(biased.shape), c.top)
    weights = scores * sent
    weights = c.scale * weights / jnp.sum(weights, axis=-1, keepdims=True)
    places = layers.capacity(c.capacity_factor, x.shape[1], c.top, c.experts)
    return layers.route(sent, weights, places, x.dtype)


def _ffn(config: DeepSeekConfig, x: jax.Array, layer: Params) -> jax.Array:
    """SwiGLU, or a mixture of it, `[B, S, D] -> [B, S, D]`."""
    if "router" not in layer:
        return layers.gated(x, layer["w_gate"], layer["w_up"], layer["w_down"])
    shared = layers.gated(x, layer["shared_gate"], layer["shared_up"], layer["shared_down"])
    return shared + layers.experts(x, _route(config, x, layer), layer)


def loss(config: DeepSeekConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`."""

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        x = x + _attention(config, layers.rms_norm(x, layer["ln1"]), layer)
        return x + _ffn(config, layers.rms_norm(x, layer["ln2"]), layer), None

    x = params["embed"].astype(config.dtype)[batch["tokens"]]
    x, _ = jax.lax.scan(block, x, params["dense"])
    x, _ = jax.lax.scan(block, x, params["layers"])
    x = layers.rms_norm(x, params["ln_f"])
    logits = layers.dense("bsd,dn->bsn", x, params["output"])
    return training.cross_entropy(logits, batch["targets"])


def train_step(config: DeepSeekConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: DeepSeekConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    return training.abstract_tokens(config.batch, config.sequence)


def example_batch(config: DeepSeekConfig, key: jax.Array) -> Params:
    """A batch of random tokens."""
    bounds = dict.fromkeys(("tokens", "targets"), config.vocabulary)
    return training.example(abstract_batch(config), key, bounds)
