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
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import layers, training

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
    """The train state: parameters (float32) and Adam's state."""
    c = config
    keys = iter(jax.random.split(key, c.layers * 6 + 3))

    def matrix(shape: tuple[int, ...], fan_in: int) -> jax.Array:
        values: jax.Array = jax.random.normal(next(keys), shape) * fan_in**-0.5
        return values

    def norm() -> Params:
        return {"scale": jnp.ones(c.embed), "bias": jnp.zeros(c.embed)}

    def layer() -> Params:
        return {
            "ln1": norm(),
            "wq": matrix((c.embed, c.heads, c.head_dim), c.embed),
            "bq": jnp.zeros((c.heads, c.head_dim)),
            "wk": matrix((c.embed, c.heads, c.head_dim), c.embed),
            "wv": matrix((c.embed, c.heads, c.head_dim), c.embed),
            "bv": jnp.zeros((c.heads, c.head_dim)),
            "wo": matrix((c.heads, c.head_dim, c.embed), c.heads * c.head_dim),
            "bo": jnp.zeros(c.embed),
            "ln2": norm(),
            "w_in": matrix((c.embed, c.ffn), c.embed),
            "b_in": jnp.zeros(c.ffn),
            "w_out": matrix((c.ffn, c.embed), c.ffn),
            "b_out": jnp.zeros(c.embed),
        }

    patch = (c.patch, c.patch, c.channels, c.embed)
    params = {
        "w_patch": matrix(patch, c.patch * c.patch * c.channels),
        "b_patch": jnp.zeros(c.embed),
        "position": matrix((c.rows * c.rows, c.embed), c.embed),
        "layers": [layer() for _ in range(c.layers)],
        "ln_f": norm(),
        "w_head": matrix((c.embed, c.classes), c.embed),
        "b_head": jnp.zeros(c.classes),
    }
    return training.state(params, config.learning_rate)


def _embed(config: ViTConfig, params: Params, images: jax.Array) -> jax.Array:
    """The tokens of images, `[B, I x P, J x R, C] -> [B, S, D]`."""
    c = config
    x = images.astype(c.dtype).reshape(-1, c.rows, c.patch, c.rows, c.patch, c.channels)
    x = jnp.einsum("bipjrc,prcd->bijd", x, params["w_patch"].astype(x.dtype))
    x = x.reshape(-1, c.rows * c.rows, c.embed)
    shift: jax.Array = params["b_patch"] + params["position"]
    return x + shift.astype(x.dtype)


def _attention(x: jax.Array, layer: Params) -> jax.Array:
    """Self-attention, `[B, S, D] -> [B, S, D]`."""
    names = ("wq", "bq", "wk", "wv", "bv", "wo", "bo")
    p: dict[str, jax.Array] = {name: layer[name].astype(x.dtype) for name in names}
    q = jnp.einsum("bsd,dhk->bshk", x, p["wq"]) + p["bq"]
    k = jnp.einsum("bsd,dhk->bshk", x, p["wk"])
    v = jnp.einsum("bsd,dhk->bshk", x, p["wv"]) + p["bv"]
    return jnp.einsum("bqhk,hkd->bqd", layers.attend(q, k, v), p["wo"]) + p["bo"]


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """Two matrices around a GELU, `[B, S, D] -> [B, S, D]`."""
    names = ("w_in", "b_in", "w_out", "b_out")
    p: dict[str, jax.Array] = {name: layer[name].astype(x.dtype) for name in names}
    hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, p["w_in"]) + p["b_in"])
    return jnp.einsum("bsf,fd->bsd", hidden, p["w_out"]) + p["b_out"]


def loss(config: ViTConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['labels']`, int32 `[B]`, given `batch['images']`."""
    x = _embed(config, params, batch["images"])
    for layer in params["layers"]:
        x = x + _attention(layers.layer_norm(x, layer["ln1"]), layer)
        x = x + _ffn(layers.layer_norm(x, layer["ln2"]), layer)
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
