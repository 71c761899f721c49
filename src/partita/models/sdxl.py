"""A U-Net like that of Stable Diffusion XL and its Adam train step, in plain JAX and Optax.

Residual blocks of convolutions, conditioned on the time, on a pooled text and on the sizes of the
picture; behind those of the lower resolutions transformers between the pixels, with cross attention
to a text, whose layers are stacked for `lax.scan` with rematerialization. It is trained to predict
the noise, mixed into latents on a cosine schedule; noise, times and the encoded text come with the
batch. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: B batch, Y rows, X columns, C channels, S (and Q, of the queries) pixels Y x X or
tokens of the text, H heads, K head-dim, F ffn, T time embedding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import convolutions, layers, stack, training
from partita.models.parts.convolutions import UNet
from partita.models.parts.feed_forward import Gated
from partita.models.parts.layers import Learned
from partita.models.parts.training import Input

Params = dict[str, Any]

TIMES = 1000
"""Times are this many steps long."""


@dataclasses.dataclass(frozen=True)
class SDXLConfig:
    """Sizes of an SDXL U-Net. All are numbers of elements; `dtype` is the compute type."""

    batch: int
    image: int
    """Height and width of the latents; halved from level to level."""
    channels: int
    multipliers: tuple[int, ...]
    """Width of every level, in `channels`."""
    depths: tuple[int, ...]
    """Layers of a transformer of every level; 0 for no transformers."""
    blocks: int
    """Residual blocks of a level, on the way down; one more on the way up."""
    head_dim: int
    text: int
    """Tokens of the text."""
    text_embed: int
    pooled_embed: int
    size_embed: int = 256
    """Waves that each of the six sizes of a picture enters by."""
    groups: int = 32
    latent_channels: int = 4
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def time(self) -> int:
        """Width of the time embedding."""
        return 4 * self.channels


SIZES = 6
"""Height and width of the original and of the target, and where it was cropped."""

# Section 2.1 and table 1 of arXiv 2307.01952, and unet/config.json of
# stabilityai/stable-diffusion-xl-base-1.0.
PRESETS = {
    "sdxl-tiny": SDXLConfig(16, 8, 16, (1, 2), (0, 1), 1, 8, 8, 32, 16, size_embed=8, groups=8),
    "sdxl": SDXLConfig(256, 128, 320, (1, 2, 4), (0, 2, 10), 2, 64, 77, 2048, 1280),
}


def _unet(config: SDXLConfig) -> UNet:
    c = config
    sizes = c.channels, c.multipliers, c.blocks, c.groups, c.latent_channels
    return UNet(*sizes, "transformer", tuple(map(bool, c.depths)))


def init(config: SDXLConfig, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    keys = iter(jax.random.split(key, 1024))  # more than there are weights
    added = c.pooled_embed + SIZES * c.size_embed
    return {
        "time1": convolutions.init_dense(keys, c.channels, c.time),
        "time2": convolutions.init_dense(keys, c.time, c.time),
        "added1": convolutions.init_dense(keys, added, c.time),
        "added2": convolutions.init_dense(keys, c.time, c.time),
        **_unet(c).init(keys, functools.partial(_init_transformer, c, keys), c.time),
    }


def _init_transformer(config: SDXLConfig, keys: Iterator[jax.Array], level: int) -> Params:
    """The transformer of a level, with a norm and a matrix on both sides of its layers."""
    c, width = config, config.channels * config.multipliers[level]
    heads = width // c.head_dim, c.head_dim
    parts = {
        "self": layers.attention_parameters(width, heads, "o"),
        "cross": layers.attention_parameters(width, heads, "o", c.text_embed),
        "ffn": _gated(width, 4 * width),
    }
    norm = functools.partial(layers.init_norm, width)
    return {
        "norm": norm(),
        "project_in": convolutions.init_dense(keys, width, width),
        "layers": stack.init(next(keys), c.depths[level], parts, norm),
        "project_out": convolutions.init_dense(keys, width, width),
    }


def _gated(width: int, ffn: int) -> Learned:
    """Parameters of a feed-forward: gate, up and down, each with a bias."""
    biases = layers.zeros({"b_gate": (ffn,), "b_up": (ffn,), "b_down": (width,)})
    return Gated(ffn).learned(width).joined(Learned(others=biases))


def _ffn(x: jax.Array, params: Params) -> jax.Array:
    """GeGLU with biases, `[B, S, C] -> [B, S, C]`."""
    gate = jax.nn.gelu(layers.dense("bsc,cf->bsf", x, params["w_gate"], params["b_gate"]))
    up = layers.dense("bsc,cf->bsf", x, params["w_up"], params["b_up"])
    return layers.dense("bsf,fc->bsc", gate * up, params["w_down"], params["b_down"])


def _transformer(config: SDXLConfig, x: jax.Array, text: jax.Array, params: Params) -> jax.Array:
    """A transformer between the pixels, with its residual, `[B, Y, X, C] -> [B, Y, X, C]`."""
    normed = convolutions.group_norm(x, params["norm"], config.groups)
    pixels = convolutions.dense(normed.reshape(x.shape[0], -1, x.shape[3]), params["project_in"])
    norm = functools.partial(layers.layer_norm, epsilon=1e-5)

    def attend(x: jax.Array, part: Params) -> jax.Array:
        return layers.attention(x, x, part)

    pixels = stack.apply(pixels, text, params["layers"], norm, attend, feed_forward=_ffn)
    return x + convolutions.dense(pixels, params["project_out"]).reshape(x.shape)


def _condition(config: SDXLConfig, params: Params, batch: Params) -> jax.Array:
    """Time, pooled text and sizes of the picture, `[B, T]`."""
    c = config
    time = layers.waves(TIMES * batch["time"], c.channels).astype(c.dtype)
    time = convolutions.dense(time, params["time1"])
    time = convolutions.dense(jax.nn.silu(time), params["time2"])
    sizes = layers.waves(batch["sizes"], c.size_embed).reshape(time.shape[0], -1)
    added = jnp.concatenate([batch["pooled"], sizes], axis=-1).astype(c.dtype)
    added = convolutions.dense(added, params["added1"])
    return time + convolutions.dense(jax.nn.silu(added), params["added2"])


def predict(config: SDXLConfig, params: Params, noisy: jax.Array, batch: Params) -> jax.Array:
    """The noise in latents `[B, Y, X, C]`, given times, text and sizes."""
    c = config
    time, text = _condition(c, params, batch), batch["text"].astype(c.dtype)

    def transformer(x: jax.Array, params: Params) -> jax.Array:
        return _transformer(c, x, text, params)

    return _unet(c)(noisy.astype(c.dtype), time, params, transformer)


def loss(config: SDXLConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of the noise predicted from latents mixed with `batch['noise']`."""
    noisy = training.noisy(batch["latents"], batch)
    return training.squared_error(predict(config, params, noisy, batch), batch["noise"])


def inputs(config: SDXLConfig) -> training.Inputs:
    """Latents, noise, times, texts and sizes."""
    c = config
    latents = Input((c.batch, c.image, c.image, c.latent_channels))
    return {
        "latents": latents,
        "noise": latents,
        "time": Input((c.batch,), uniform=True),
        "text": Input((c.batch, c.text, c.text_embed)),
        "pooled": Input((c.batch, c.pooled_embed)),
        "sizes": Input((c.batch, SIZES)),
    }


MODEL = training.trained(init, loss, inputs)
