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
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import convolutions, layers, training

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


def init(config: UNetConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    keys = iter(jax.random.split(key, 1024))  # more than there are weights
    widths = [c.channels * multiplier for multiplier in c.multipliers]

    def block(level: int, width_in: int) -> Params:
        params: Params = {"res": convolutions.init_residual(keys, width_in, widths[level], c.time)}
        if c.image >> level in c.attention:
            params["attention"] = _init_attention(c, keys, widths[level])
        return params

    width = c.channels
    skips = [width]
    down: list[Params] = []
    for level, width_out in enumerate(widths):
        blocks = [block(level, width if n == 0 else width_out) for n in range(c.blocks)]
        skips += [width_out] * c.blocks
        down.append({"blocks": blocks})
        if level < len(widths) - 1:
            down[-1]["resample"] = convolutions.init_conv(keys, 3, width_out, width_out)
            skips.append(width_out)
        width = width_out
    middle = {
        "res1": convolutions.init_residual(keys, width, width, c.time),
        "attention": _init_attention(c, keys, width),
        "res2": convolutions.init_residual(keys, width, width, c.time),
    }
    up: list[Params] = []
    for level, width_out in reversed(list(enumerate(widths))):
        blocks = []
        for _ in range(c.blocks + 1):
            blocks.append(block(level, width + skips.pop()))
            width = width_out
        up.append({"blocks": blocks})
        if level > 0:
            up[-1]["resample"] = convolutions.init_conv(keys, 3, width, width)
    params = {
        "time1": convolutions.init_dense(keys, c.channels, c.time),
        "time2": convolutions.init_dense(keys, c.time, c.time),
        "conv_in": convolutions.init_conv(keys, 3, c.image_channels, c.channels),
        "down": down,
        "middle": middle,
        "up": up,
        "norm_out": convolutions.init_norm(width),
        "conv_out": convolutions.init_conv(keys, 3, width, c.image_channels),
    }
    return training.state(params, config.learning_rate)


def _init_attention(config: UNetConfig, keys: Iterator[jax.Array], width: int) -> Params:
    into = (width, config.heads, width // config.heads)
    out = (config.heads, width // config.heads, width)
    shapes = {"wq": into, "wk": into, "wv": into, "wo": out}
    weights = {n: jax.random.normal(next(keys), s) * width**-0.5 for n, s in shapes.items()}
    return weights | {"norm": convolutions.init_norm(width), "bo": jnp.zeros(width)}


def _attention(config: UNetConfig, x: jax.Array, params: Params) -> jax.Array:
    """Self-attention between the pixels, with its residual, `[B, Y, X, C] -> [B, Y, X, C]`."""
    pixels = convolutions.group_norm(x, params["norm"], config.groups).reshape(
        x.shape[0], -1, x.shape[3]
    )
    q, k, v = (layers.dense("bsc,chk->bshk", pixels, params[name]) for name in ("wq", "wk", "wv"))
    out = layers.dense("bqhk,hkc->bqc", layers.attend(q, k, v), params["wo"], params["bo"])
    return x + out.reshape(x.shape)


def _block(config: UNetConfig, x: jax.Array, time: jax.Array, params: Params) -> jax.Array:
    x = convolutions.residual(x, time, params["res"], config.groups)
    return _attention(config, x, params["attention"]) if "attention" in params else x


def predict(config: UNetConfig, params: Params, x: jax.Array, time: jax.Array) -> jax.Array:
    """The noise in images `[B, Y, X, I]` at times `[B]` in the range 0 (no noise) to 1."""
    half = config.channels // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = 1000 * time[:, None] * frequencies
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(config.dtype)
    t = convolutions.dense(jax.nn.silu(convolutions.dense(waves, params["time1"])), params["time2"])
    x = convolutions.conv(x.astype(config.dtype), params["conv_in"])
    skips = [x]
    for level in params["down"]:
        for block in level["blocks"]:
            x = _block(config, x, t, block)
            skips.append(x)
        if "resample" in level:
            x = convolutions.conv(x, level["resample"], stride=2)
            skips.append(x)
    x = convolutions.residual(x, t, params["middle"]["res1"], config.groups)
    x = _attention(config, x, params["middle"]["attention"])
    x = convolutions.residual(x, t, params["middle"]["res2"], config.groups)
    for level in params["up"]:
        for block in level["blocks"]:
            x = _block(config, jnp.concatenate([x, skips.pop()], axis=-1), t, block)
        if "resample" in level:
            x = convolutions.conv(convolutions.double(x), level["resample"])
    return convolutions.conv(
        jax.nn.silu(convolutions.group_norm(x, params["norm_out"], config.groups)),
        params["conv_out"],
    )


def loss(config: UNetConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of the noise predicted from images mixed with `batch['noise']`."""
    angle = batch["time"][:, None, None, None] * (jnp.pi / 2)
    noisy = jnp.cos(angle) * batch["images"] + jnp.sin(angle) * batch["noise"]
    noise = predict(config, params, noisy, batch["time"])
    return jnp.mean((noise.astype(jnp.float32) - batch["noise"]) ** 2)


def train_step(config: UNetConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: UNetConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    shape = (config.batch, config.image, config.image, config.image_channels)
    images = jax.ShapeDtypeStruct(shape, jnp.float32)
    time = jax.ShapeDtypeStruct((config.batch,), jnp.float32)
    return {"images": images, "noise": images, "time": time}


def example_batch(config: UNetConfig, key: jax.Array) -> Params:
    """A batch of random images, noise and times."""
    keys = jax.random.split(key, 3)
    shapes = abstract_batch(config)
    return {
        "images": jax.random.normal(keys[0], shapes["images"].shape),
        "noise": jax.random.normal(keys[1], shapes["noise"].shape),
        "time": jax.random.uniform(keys[2], shapes["time"].shape),
    }
