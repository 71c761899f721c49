"""A diffusion U-Net (DDPM) and its Adam train step, in plain JAX and Optax.

Residual blocks of convolutions (NHWC) with group norms, conditioned on the time; self-attention
at the low resolutions; strided convolutions down, nearest-neighbour upsampling with a
convolution up, and skip connections by concatenation. It is trained to predict the noise, mixed
in on a cosine schedule; the noise and the times come with the batch. Parameters are kept in
float32 and used in `config.dtype`.

Shape legend: B batch, Y rows, X columns, C channels, I image channels, G groups, S (and Q, of the
queries) pixels Y x X, H heads, K head-dim, T time embedding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import convolutions, layers, training
from partita.models.parts.convolutions import UNet
from partita.models.parts.training import Input

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class UNetConfig:
    """Sizes of a U-Net. All are numbers of elements; `dtype` is the compute type."""

    batch: int
    image: int
    """Height and width of an image; halved from level to level."""
    channels: int
    multipliers: tuple[int, ...]
    """Width of every level, in `channels`."""
    blocks: int
    """Residual blocks of a level, on the way down; one more on the way up."""
    attention: tuple[int, ...]
    """Heights at which every block is followed by self-attention."""
    heads: int
    groups: int
    image_channels: int = 3
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def time(self) -> int:
        """Width of the time embedding."""
        return 4 * self.channels


PRESETS = {
    "unet-tiny": UNetConfig(16, 16, 16, (1, 2), 1, (8,), 8, 8),
    "unet-ddpm": UNetConfig(64, 256, 128, (1, 1, 2, 2, 4, 4), 2, (16,), 1, 32),
}


def _unet(config: UNetConfig) -> UNet:
    c = config
    mixed = tuple(c.image >> level in c.attention for level in range(len(c.multipliers)))
    sizes = c.channels, c.multipliers, c.blocks, c.groups, c.image_channels
    return UNet(*sizes, "attention", mixed)


def init(config: UNetConfig, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    keys = iter(jax.random.split(key, 1024))  # more than there are weights

    def attention(level: int) -> Params:
        width = c.channels * c.multipliers[level]
        learned = layers.attention_parameters(width, (c.heads, width // c.heads), "o")
        return learned.init(next(keys)) | {"norm": layers.init_norm(width)}

    return {
        "time1": convolutions.init_dense(keys, c.channels, c.time),
        "time2": convolutions.init_dense(keys, c.time, c.time),
        **_unet(c).init(keys, attention, c.time),
    }


def predict(config: UNetConfig, params: Params, x: jax.Array, time: jax.Array) -> jax.Array:
    """The noise in images `[B, Y, X, I]` at times `[B]` in the range 0 (no noise) to 1."""
    half = config.channels // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = 1000 * time[:, None] * frequencies
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(config.dtype)
    t = convolutions.dense(jax.nn.silu(convolutions.dense(waves, params["time1"])), params["time2"])

    def attention(x: jax.Array, params: Params) -> jax.Array:
        """Self-attention between the pixels, with its residual."""
        pixels = convolutions.group_norm(x, params["norm"], config.groups)
        pixels = pixels.reshape(x.shape[0], -1, x.shape[3])
        return x + layers.attention(pixels, pixels, params).reshape(x.shape)

    return _unet(config)(x.astype(config.dtype), t, params, attention)


def loss(config: UNetConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of the noise predicted from images mixed with `batch['noise']`."""
    noisy = training.noisy(batch["images"], batch)
    return training.squared_error(predict(config, params, noisy, batch["time"]), batch["noise"])


def inputs(config: UNetConfig) -> training.Inputs:
    """Images, noise and times."""
    images = Input((config.batch, config.image, config.image, config.image_channels))
    return {"images": images, "noise": images, "time": Input((config.batch,), uniform=True)}


MODEL = training.trained(init, loss, inputs)
