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

from partita.models import layers, training
from partita.models.vit import ViTConfig

Params = dict[str, Any]


# Table 1 of arXiv 2302.05442; the classifier is that of ImageNet.
PRESETS = {
    "vit-22b-tiny": ViTConfig(2, 16, 32, 8, 64, 8, 8, 128, 64),
    "vit-22b": ViTConfig(48, 1024, 224, 14, 6144, 48, 128, 24576, 1000),
}


def init(config: ViTConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, key = jax.random.split(key)
    layer = functools.partial(_init_layer, c)
    area = c.patch * c.patch * c.channels
    shapes: layers.Shapes = {
        "w_patch": ((c.patch, c.patch, c.channels, c.embed), area),
        "position": ((c.rows * c.rows, c.embed), c.embed),
        "w_head": ((c.embed, c.classes), c.embed),
    }
    params = {
        **layers.matrices(key, shapes),
        "b_patch": jnp.zeros(c.embed),
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": {"scale": jnp.ones(c.embed)},
        "b_head": jnp.zeros(c.classes),
    }
    return training.state(params, c.learning_rate)


def _init_layer(config: ViTConfig, key: jax.Array) -> Params:
    """One layer: its six matrices, three biases and three norms."""
    c = config
    heads = (c.heads, c.head_dim)
    shapes: layers.Shapes = {
        "wq": ((c.embed, *heads), c.embed),
        "wk": ((c.embed, *heads), c.embed),
        "wv": ((c.embed, *heads), c.embed),
        "wo": ((*heads, c.embed), c.heads * c.head_dim),
        "w_in": ((c.embed, c.ffn), c.embed),
        "w_out": ((c.ffn, c.embed), c.ffn),
    }
    biases = {"bo": c.embed, "b_in": c.ffn, "b_out": c.embed}
    norms = {"ln": c.embed, "ln_q": c.head_dim, "ln_k": c.head_dim}
    return (
        layers.matrices(key, shapes)
        | {name: jnp.zeros(width) for name, width in biases.items()}
        | {name: {"scale": jnp.ones(width)} for name, width in norms.items()}
    )


def _embed(config: ViTConfig, params: Params, images: jax.Array) -> jax.Array:
    """The tokens of images, `[B, I x P, J x R, C] -> [B, S, D]`."""
    c = config
    x = images.astype(c.dtype).reshape(-1, c.rows, c.patch, c.rows, c.patch, c.channels)
    x = layers.dense("bipjrc,prcd->bijd", x, params["w_patch"], params["b_patch"])
    position: jax.Array = params["position"].astype(x.dtype)
    return x.reshape(-1, c.rows * c.rows, c.embed) + position


def _attention(x: jax.Array, layer: Params) -> jax.Array:
    """Self-attention, `[B, S, D] -> [B, S, D]`."""
    q = layers.layer_norm(layers.dense("bsd,dhk->bshk", x, layer["wq"]), layer["ln_q"])
    k = layers.layer_norm(layers.dense("bsd,dhk->bshk", x, layer["wk"]), layer["ln_k"])
    v = layers.dense("bsd,dhk->bshk", x, layer["wv"])
    return layers.dense("bqhk,hkd->bqd", layers.attend(q, k, v), layer["wo"], layer["bo"])


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """Two matrices around a GELU, `[B, S, D] -> [B, S, D]`."""
    hidden = jax.nn.gelu(layers.dense("bsd,df->bsf", x, layer["w_in"], layer["b_in"]))
    return layers.dense("bsf,fd->bsd", hidden, layer["w_out"], layer["b_out"])


def loss(config: ViTConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['labels']`, int32 `[B]`, given `batch['images']`."""

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        normed = layers.layer_norm(x, layer["ln"])
        return x + _attention(normed, layer) + _ffn(normed, layer), None

    x, _ = jax.lax.scan(block, _embed(config, params, batch["images"]), params["layers"])
    pooled = jnp.mean(layers.layer_norm(x, params["ln_f"]).astype(jnp.float32), axis=1)
    logits = jnp.einsum("bd,dn->bn", pooled, params["w_head"]) + params["b_head"]
    return training.cross_entropy(logits, batch["labels"])


def train_step(config: ViTConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: ViTConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    images = (config.batch, config.image, config.image, config.channels)
    return {
        "images": jax.ShapeDtypeStruct(images, jnp.float32),
        "labels": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }


def example_batch(config: ViTConfig, key: jax.Array) -> Params:
    """A batch of random images and labels."""
    return training.example(abstract_batch(config), key, {"labels": config.classes})
