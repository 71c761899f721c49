"""Normalization, and dropout, which is planned without its mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes

from partita.torch.operations.registry import aten
from partita.torch.operations.types import wide


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _normal(x: Any, dims: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """An array with mean 0 and variance 1 over some dimensions; the mean, and 1 / deviation."""
    mean = jnp.mean(x, dims, keepdims=True)
    centred = x - mean
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), dims, keepdims=True) + eps)
    return centred * inverse, mean, inverse


@aten("layer_norm")
def _layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    return _native_layer_norm(x, shape, weight, bias, eps)[0]


@aten("native_layer_norm")
def _native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    made, mean, inverse = _normal(wide(x), dims, eps)
    return _scaled(made, weight, bias), mean, inverse


@aten("rms_norm")
def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
    eps = float(ml_dtypes.finfo(x.dtype).eps) if eps is None else eps
    dims, x = tuple(range(x.ndim - len(shape), x.ndim)), wide(x)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x), dims, keepdims=True) + eps)
    return _scaled(x * inverse, weight, None)


@aten("group_norm")
def _group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    batch, channels, *rest = x.shape
    grouped = jnp.reshape(wide(x), (batch, groups, channels // groups, *rest))
    made, _, _ = _normal(grouped, tuple(range(2, grouped.ndim)), eps)
    return _scaled(jnp.reshape(made, x.shape), *_by_channel(x, weight, bias))


@aten("native_group_norm")
def _native_group_norm(
    x: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, groups: int, eps: float
) -> Any:
    grouped = jnp.reshape(wide(x), (N, groups, -1))
    _, mean, inverse = _normal(grouped, (2,), eps)
    made = _group_norm(x, groups, weight, bias, eps)
    return made, jnp.reshape(mean, (N, groups)), jnp.reshape(inverse, (N, groups))


def _by_channel(x: Any, *values: Any) -> list[Any]:
    shape = (x.shape[1],) + (1,) * (x.ndim - 2)
    return [None if v is None else jnp.reshape(v, shape) for v in values]


@aten("_native_batch_norm_legit_no_training")
def _batch_norm_inference(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    mean, var, weight, bias = _by_channel(x, mean, var, weight, bias)
    made = _scaled((wide(x) - mean) * jax.lax.rsqrt(var + eps), weight, bias)
    return made, jnp.zeros((0,), x.dtype), jnp.zeros((0,), x.dtype)


@aten("_native_batch_norm_legit_functional")
def _batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        return (*_batch_norm_inference(x, weight, bias, mean, var, momentum, eps), mean, var)
    dims = (0, *range(2, x.ndim))
    made, now, inverse = _normal(wide(x), dims, eps)
    count = math.prod(x.shape[d] for d in dims)
    flat, variance = jnp.reshape(now, (-1,)), jnp.reshape(jnp.var(wide(x), dims), (-1,))
    unbiased = variance * (count / max(count - 1, 1))
    new_mean = (1 - momentum) * mean + momentum * flat
    new_var = (1 - momentum) * var + momentum * unbiased
    made = _scaled(made, *_by_channel(x, weight, bias))
    new = (jax.lax.stop_gradient(new_mean), jax.lax.stop_gradient(new_var))
    return (made, flat, jnp.reshape(inverse, (-1,)), *new)


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_without_stats(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    made, mean, inverse = _normal(wide(x), (0, *range(2, x.ndim)), eps)
    made = _scaled(made, *_by_channel(x, weight, bias))
    return made, jnp.reshape(mean, (-1,)), jnp.reshape(inverse, (-1,))


@aten("dropout")
def _dropout(x: Any, rate: float, training: bool) -> Any:
    return x


@aten("native_dropout")
def _native_dropout(x: Any, rate: float, training: Any) -> Any:
    return x, jnp.ones(x.shape, bool)
