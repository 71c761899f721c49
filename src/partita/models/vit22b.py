"""A vision transformer like ViT-22B and its Adam train step, in plain JAX and Optax.

Attention and feed-forward of a layer read the same norm and are added together (parallel layers),
and queries and keys are normed, as are needed at this size; projections of queries, keys and values
have no biases, nor have norms. The classifier reads the mean of the tokens. The layers are stacked,
for `lax.scan` with rematerialization. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, I and J rows and columns of patches, P and R rows and columns
within a patch, C channels, S (and Q, of the queries) sequence I x J, D embed, H heads, K head-dim,
F ffn, N classes.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import vit
from partita.models.parts import layers, training
from partita.models.parts.layers import Learned, Weights
from partita.models.vit import ViTConfig

Params = dict[str, Any]


# Table 1 of arXiv 2302.05442; the classifier is that of ImageNet.
PRESETS = {
    "vit-22b-tiny": ViTConfig(2, 16, 32, 8, 64, 8, 8, 128, 64),
    "vit-22b": ViTConfig(48, 1024, 224, 14, 6144, 48, 128, 24576, 1000),
}


def init(config: ViTConfig, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    layer_key, key = jax.random.split(key)
    norms = {"ln": c.embed, "ln_q": c.head_dim, "ln_k": c.head_dim}
    learned = layers.attention_parameters(c.embed, (c.heads, c.head_dim), "o")
    learned = learned.joined(layers.feed_forward_parameters(c.embed, c.ffn, biases=True))
    layer = functools.partial(learned.joined(Learned(norms=norms)).init, norm=_norm)
    stacked = jax.vmap(layer)(jax.random.split(layer_key, c.layers))
    return {**vit.init_ends(c, key, _norm), "layers": stacked}


def _norm(width: int) -> Weights:
    return {"scale": jnp.ones(width)}


def _attention(x: jax.Array, layer: Params) -> jax.Array:
    """Self-attention, `[B, S, D] -> [B, S, D]`."""
    q = layers.layer_norm(layers.dense("bsd,dhk->bshk", x, layer["wq"]), layer["ln_q"])
    k = layers.layer_norm(layers.dense("bsd,dhk->bshk", x, layer["wk"]), layer["ln_k"])
    v = layers.dense("bsd,dhk->bshk", x, layer["wv"])
    return layers.dense("bqhk,hkd->bqd", layers.attend(q, k, v), layer["wo"], layer["bo"])


def loss(config: ViTConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['labels']`, int32 `[B]`, given `batch['images']`."""

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        normed = layers.layer_norm(x, layer["ln"])
        return x + _attention(normed, layer) + layers.feed_forward(normed, layer), None

    x = vit.patches(batch["images"], config.patch, config.dtype)
    x = layers.dense("bipjrc,prcd->bijd", x, params["w_patch"], params["b_patch"])
    position: jax.Array = params["position"].astype(x.dtype)
    x = x.reshape(x.shape[0], -1, config.embed) + position
    x, _ = jax.lax.scan(block, x, params["layers"])
    return vit.classification(x, params, batch["labels"])


MODEL = training.trained(init, loss, vit.inputs)
