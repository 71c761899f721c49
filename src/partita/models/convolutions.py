"""Layers of U-Nets: convolutions (NHWC), group norms, residual blocks conditioned on the time.

Functions of arrays, which know nothing of how they are partitioned. Matrices are used in the type
of what they are multiplied with; norms compute in float32.

Shape legend: B batch, Y rows, X columns, C channels, T time embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

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


def init_norm(width: int) -> Weights:
    """A scale and a bias."""
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def init_residual(keys: Iterator[jax.Array], width_in: int, width: int, time: int) -> Params:
    """A residual block from one width to another, conditioned on an embedding of width `time`."""
    params = {
        "norm1": init_norm(width_in),
        "conv1": init_conv(keys, 3, width_in, width),
        "time": init_dense(keys, time, width),
        "norm2": init_norm(width),
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
    w = params["w"].astype(x.dtype)
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=layout)
    return x + params["b"].astype(x.dtype)


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
