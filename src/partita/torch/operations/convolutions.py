"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten


def _each(values: Sequence[int], count: int) -> list[int]:
    """One number for every spatial dimension."""
    values = list(values)
    return values * count if len(values) == 1 else values


@aten("convolution")
def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    spatial = weight.ndim - 2
    batched = x if x.ndim == weight.ndim else x[None]
    strides, pads, dilations, extra = (
        _each(each, spatial) for each in (stride, padding, dilation, output_padding)
    )
    if transposed:
        made = _transposed(batched, weight, strides, pads, dilations, extra, groups)
    else:
        made = jax.lax.conv_general_dilated(
            batched,
            weight,
            strides,
            [(pad, pad) for pad in pads],
            rhs_dilation=dilations,
            feature_group_count=groups,
        )
    if bias is not None:
        made = made + jnp.reshape(bias, (-1,) + (1,) * spatial)
    return made if x.ndim == weight.ndim else made[0]


def _transposed(
    x: Any,
    weight: Any,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    extra: list[int],
    groups: int,
) -> Any:
    """The gradient of a convolution: the weight is `[in, out / groups, ...]`, and turned over."""
    into, out, *window = weight.shape
    kernel = jnp.reshape(weight, (groups, into // groups, out, *window))
    kernel = jnp.reshape(jnp.swapaxes(kernel, 1, 2), (groups * out, into // groups, *window))
    kernel = jnp.flip(kernel, tuple(range(2, kernel.ndim)))
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, window, strict=True)]
    padding = [(r - p, r - p + e) for r, p, e in zip(reach, pads, extra, strict=True)]
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        [1] * len(window),
        padding,
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=groups,
    )


def _windows(x: Any, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Any:
    count = len(kernel)
    ones = (1,) * (x.ndim - count)
    pads = ((0, 0),) * (x.ndim - count) + tuple((p, p) for p in _each(padding, count))
    return (*ones, *kernel), (*ones, *(_each(stride, count) if stride else kernel)), pads


@aten("max_pool2d_with_indices max_pool3d_with_indices")
def _max_pool(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    if ceil_mode or any(d != 1 for d in dilation):
        raise NotImplementedError("max pooling with ceil_mode or dilation")
    made = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *_windows(x, kernel, stride, padding))
    return made, jnp.zeros(made.shape, jnp.int32)  # nobody but the backward reads the indices


@aten("avg_pool2d avg_pool3d")
def _avg_pool(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: Any = None,
) -> Any:
    if ceil_mode:
        raise NotImplementedError("average pooling with ceil_mode")
    windows = _windows(x, kernel, stride, padding)
    total = jax.lax.reduce_window(x, 0.0, jax.lax.add, *windows)
    if divisor:
        return total / divisor
    if count_include_pad:
        return total / jnp.prod(jnp.asarray(kernel))
    return total / jax.lax.reduce_window(jnp.ones_like(x), 0.0, jax.lax.add, *windows)


@aten("_adaptive_avg_pool2d _adaptive_avg_pool3d")
def _adaptive_avg_pool(x: Any, shape: Sequence[int]) -> Any:
    count = len(shape)
    for number, size in enumerate(shape):
        dim = x.ndim - count + number
        if x.shape[dim] % size:
            raise NotImplementedError("adaptive pooling to a size that does not divide")
        x = jnp.reshape(x, (*x.shape[:dim], size, x.shape[dim] // size, *x.shape[dim + 1 :]))
        x = jnp.mean(x, dim + 1)
    return x


@aten("upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest2d.vec")
def _upsample(x: Any, shape: Sequence[int], *_: Any) -> Any:
    count = len(shape)
    for number, size in enumerate(shape):
        dim = x.ndim - count + number
        if size % x.shape[dim]:
            raise NotImplementedError("nearest upsampling by something else than a whole number")
        x = jnp.repeat(x, size // x.shape[dim], dim)
    return x
