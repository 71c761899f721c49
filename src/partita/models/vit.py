"""A vision transformer (ViT) and its Adam train step, in plain JAX and Optax.

Patches are cut by a reshape and embedded by a matrix, positions are learned, and the classifier
reads the mean of the tokens. Layers are unrolled. The attention has no key bias, which the softmax
would not see. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: B batch, I and J rows and columns of patches, P and R rows and columns within a
patch, C channels, S (and Q, of the queries) sequence I x J, D embed, H heads, K head-dim, F ffn,
N classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers, training
from partita.models.parts.layers import Learned, Weights

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Sizes of a ViT. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    image: int
    """Height and width of an image."""
    patch: int
    embed: int
    heads: int
    head_dim: int
    ffn: int
    classes: int
    channels: int = 3
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def rows(self) -> int:
        """Rows, and columns, of patches."""
        return self.image // self.patch


PRESETS = {
    "vit-tiny": ViTConfig(2, 16, 32, 8, 64, 8, 8, 128, 64),
    "vit-b16": ViTConfig(12, 1024, 224, 16, 768, 12, 64, 3072, 1000),
    "vit-l16": ViTConfig(24, 1024, 224, 16, 1024, 16, 64, 4096, 1000),
}


def init(config: ViTConfig, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    layer_key, key = jax.random.split(key)
    learned = Learned(norms=dict.fromkeys(("ln1", "ln2"), c.embed))
    learned = learned.joined(layers.attention_parameters(c.embed, (c.heads, c.head_dim), "qvo"))
    learned = learned.joined(layers.feed_forward_parameters(c.embed, c.ffn, biases=True))
    return {
        **init_ends(c, key, layers.init_norm),
        "layers": [
            learned.init(k, layers.init_norm) for k in jax.random.split(layer_key, c.layers)
        ],
    }


def init_ends(config: ViTConfig, key: jax.Array, norm: Callable[[int], Weights]) -> Params:
    """The parameters in front of the layers and behind them."""
    c = config
    shapes: layers.Shapes = {
        "w_patch": ((c.patch, c.patch, c.channels, c.embed), c.patch * c.patch * c.channels),
        "position": ((c.rows * c.rows, c.embed), c.embed),
        "w_head": ((c.embed, c.classes), c.embed),
    }
    zeros = layers.zeros({"b_patch": (c.embed,), "b_head": (c.classes,)})
    return layers.matrices(key, shapes) | zeros | {"ln_f": norm(c.embed)}


def patches(images: jax.Array, size: int, dtype: str) -> jax.Array:
    """Images cut into patches, `[B, I x P, J x R, C] -> [B, I, P, J, R, C]`."""
    rows, channels = images.shape[1] // size, images.shape[-1]
    return images.astype(dtype).reshape(-1, rows, size, rows, size, channels)


def _layer(x: jax.Array, layer: Params) -> jax.Array:
    """One layer, `[B, S, D] -> [B, S, D]`."""

    def weights(names: str) -> Weights:
        return {name: layer[name].astype(x.dtype) for name in names.split()}

    normed = layers.layer_norm(x, layer["ln1"])
    x = x + layers.attention(normed, normed, weights("wq bq wk wv bv wo bo"))
    normed = layers.layer_norm(x, layer["ln2"])
    return x + layers.feed_forward(normed, weights("w_in b_in w_out b_out"))


def loss(config: ViTConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['labels']`, int32 `[B]`, given `batch['images']`."""
    x = patches(batch["images"], config.patch, config.dtype)
    x = layers.dense("bipjrc,prcd->bijd", x, params["w_patch"])
    x = x.reshape(x.shape[0], -1, config.embed)
    shift: jax.Array = params["b_patch"] + params["position"]
    x = x + shift.astype(x.dtype)
    for layer in params["layers"]:
        x = _layer(x, layer)
    return classification(x, params, batch["labels"])


def classification(x: jax.Array, params: Params, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of labels, int32 `[B]`, given what the last layer makes of the tokens."""
    pooled = jnp.mean(layers.layer_norm(x, params["ln_f"]).astype(jnp.float32), axis=1)
    logits = jnp.einsum("bd,dn->bn", pooled, params["w_head"]) + params["b_head"]
    return training.cross_entropy(logits, labels)


def inputs(config: ViTConfig) -> training.Inputs:
    """Images and labels."""
    return training.image_inputs(config.batch, config.image, config.channels, config.classes)


MODEL = training.trained(init, loss, inputs)
