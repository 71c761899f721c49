"""U-Nets and their layers: convolutions (NHWC), group norms, residual blocks conditioned on the
time.

A U-Net goes through levels of falling resolution and back: residual blocks, behind some of which
something mixes the pixels (attention, transformers); strided convolutions down, nearest-neighbour
upsampling with a convolution up, and skip connections by concatenation.

Functions of arrays, which know nothing of how they are partitioned. Matrices are used in the type
of what they are multiplied with; norms compute in float32.

Shape legend: B batch, Y rows, X columns, C channels, T time embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers

Params = dict[str, Any]
Weights = dict[str, jax.Array]


def init_dense(keys: Iterator[jax.Array], width_in: int, width_out: int) -> Weights:
    """A matrix and a bias."""
    w = jax.random.normal(next(keys), (width_in, width_out)) * width_in**-0.5
    return {"w": w, "b": jnp.zeros(width_out)}


def init_conv(keys: Iterator[jax.Array], size: int, width_in: int, width_out: int) -> Weights:
    """The window of a convolution, `size` pixels wide and high, and a bias."""
    w = jax.random.normal(next(keys), (size, size, width_in, width_out))
    return {"w": w * (size * size * width_in) ** -0.5, "b": jnp.zeros(width_out)}


def init_residual(keys: Iterator[jax.Array], width_in: int, width: int, time: int) -> Params:
    """A residual block from one width to another, conditioned on an embedding of width `time`."""
    params = {
        "norm1": layers.init_norm(width_in),
        "conv1": init_conv(keys, 3, width_in, width),
        "time": init_dense(keys, time, width),
        "norm2": layers.init_norm(width),
        "conv2": init_conv(keys, 3, width, width),
    }
    if width_in != width:
        params["skip"] = init_conv(keys, 1, width_in, width)
    return params


def dense(x: jax.Array, params: Weights) -> jax.Array:
    """A product with a matrix, and a bias."""
    return x @ params["w"].astype(x.dtype) + params["b"].astype(x.dtype)


def conv(x: jax.Array, params: Weights, stride: int = 1) -> jax.Array:
    """Convolution, `[B, Y, X, C] -> [B, Y / stride, X / stride, C]`."""
    return convolve(x, params["w"], stride) + params["b"].astype(x.dtype)


def convolve(x: jax.Array, window: jax.Array, stride: int) -> jax.Array:
    """Convolution without a bias."""
    layout = ("NHWC", "HWIO", "NHWC")
    made: jax.Array = jax.lax.conv_general_dilated(
        x, window.astype(x.dtype), (stride, stride), "SAME", dimension_numbers=layout
    )
    return made


def group_norm(x: jax.Array, params: Weights, groups: int) -> jax.Array:
    """Norm over the pixels and the channels of a group, computed in float32."""
    grouped = x.astype(jnp.float32).reshape(*x.shape[:3], groups, -1)
    grouped = grouped - jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
    variance = jnp.mean(grouped * grouped, axis=(1, 2, 4), keepdims=True)
    normed = (grouped * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return (normed * params["scale"] + params["bias"]).astype(x.dtype)


def residual(x: jax.Array, time: jax.Array, params: Params, groups: int) -> jax.Array:
    """Residual block, conditioned on the time embedding `[B, T]`."""
    h = conv(jax.nn.silu(group_norm(x, params["norm1"], groups)), params["conv1"])
    h = h + dense(jax.nn.silu(time), params["time"])[:, None, None, :]
    h = conv(jax.nn.silu(group_norm(h, params["norm2"], groups)), params["conv2"])
    return h + (conv(x, params["skip"]) if "skip" in params else x)


def double(x: jax.Array) -> jax.Array:
    """Nearest-neighbour upsampling, `[B, Y, X, C] -> [B, 2 Y, 2 X, C]`."""
    b, y, x_, c = x.shape
    return jnp.broadcast_to(x[:, :, None, :, None], (b, y, 2, x_, 2, c)).reshape(b, 2 * y, -1, c)


@dataclasses.dataclass(frozen=True)
class UNet:
    """The part of a U-Net between the noisy picture and the noise. All are numbers of elements."""

    channels: int
    """Width in front of the levels."""
    multipliers: tuple[int, ...]
    """Width of every level, in `channels`."""
    blocks: int
    """Residual blocks of a level, on the way down; one more on the way up."""
    groups: int
    """Groups of channels that are normed together."""
    picture: int
    """Channels of what goes in and comes out."""
    mixer: str
    """Name of the parameters of what mixes pixels."""
    mixed: tuple[bool, ...]
    """True for every level whose blocks are followed by that; it is in the middle anyway."""

    def init(
        self, keys: Iterator[jax.Array], mixer: Callable[[int], Params], time: int
    ) -> dict[str, Any]:
        """The parameters (float32).

        Args:
          keys: of the random numbers.
          mixer: makes the parameters of what mixes the pixels of a level.
          time: width of the time embedding.
        """
        widths = [self.channels * multiplier for multiplier in self.multipliers]
        last = len(widths) - 1

        def block(level: int, width_in: int) -> Params:
            made: Params = {"res": init_residual(keys, width_in, widths[level], time)}
            return made | {self.mixer: mixer(level)} if self.mixed[level] else made

        width = self.channels
        skips = [width]
        down: list[Params] = []
        for level, width_out in enumerate(widths):
            blocks = [block(level, width if n == 0 else width_out) for n in range(self.blocks)]
            skips += [width_out] * self.blocks
            down.append({"blocks": blocks})
            if level < last:
                down[-1]["resample"] = init_conv(keys, 3, width_out, width_out)
                skips.append(width_out)
            width = width_out
        middle = {
            "res1": init_residual(keys, width, width, time),
            self.mixer: mixer(last),
            "res2": init_residual(keys, width, width, time),
        }
        up: list[Params] = []
        for level, width_out in reversed(list(enumerate(widths))):
            blocks = []
            for _ in range(self.blocks + 1):
                blocks.append(block(level, width + skips.pop()))
                width = width_out
            up.append({"blocks": blocks})
            if level > 0:
                up[-1]["resample"] = init_conv(keys, 3, width, width)
        return {
            "conv_in": init_conv(keys, 3, self.picture, self.channels),
            "down": down,
            "middle": middle,
            "up": up,
            "norm_out": layers.init_norm(width),
            "conv_out": init_conv(keys, 3, width, self.picture),
        }

    def __call__(
        self,
        x: jax.Array,
        time: jax.Array,
        params: Params,
        mix: Callable[[jax.Array, Params], jax.Array],
    ) -> jax.Array:
        """Applies it, `[B, Y, X, C] -> [B, Y, X, C]`.

        Args:
          x: a noisy picture.
          time: its embedding, `[B, T]`.
          params: as `init` makes them.
          mix: mixes pixels, `[B, Y, X, C] -> [B, Y, X, C]`, given parameters for that.
        """

        def block(x: jax.Array, block: Params) -> jax.Array:
            x = residual(x, time, block["res"], self.groups)
            return mix(x, block[self.mixer]) if self.mixer in block else x

        x = conv(x, params["conv_in"])
        skips = [x]
        for level in params["down"]:
            for each in level["blocks"]:
                x = block(x, each)
                skips.append(x)
            if "resample" in level:
                x = conv(x, level["resample"], stride=2)
                skips.append(x)
        middle = params["middle"]
        x = residual(x, time, middle["res1"], self.groups)
        x = residual(mix(x, middle[self.mixer]), time, middle["res2"], self.groups)
        for level in params["up"]:
            for each in level["blocks"]:
                x = block(jnp.concatenate([x, skips.pop()], axis=-1), each)
            if "resample" in level:
                x = conv(double(x), level["resample"])
        x = jax.nn.silu(group_norm(x, params["norm_out"], self.groups))
        return conv(x, params["conv_out"])
