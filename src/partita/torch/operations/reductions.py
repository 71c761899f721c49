"""Reductions, cumulative sums and sorting."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten, table
from partita.torch.operations.types import converted, wide


def _dims(dims: Any) -> Any:
    """Dimensions to reduce: one, several, or None for all."""
    return dims if isinstance(dims, int) else tuple(dims or ()) or None


def _over(function: Any) -> Any:
    """A reduction over some dimensions, or all of them."""

    def reduce(x: Any, dims: Any = None, keepdim: bool = False) -> Any:
        return function(x, _dims(dims), keepdims=keepdim)

    return reduce


def _in_type(function: Any, type_: Any = wide) -> Any:
    """The same, in a given type, or in one of enough bits."""

    def reduce(x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return function(type_(converted(x, dtype)), _dims(dims), keepdims=keepdim)

    return reduce


def _extreme(value: Any, place: Any) -> Any:
    """The largest or smallest element; along a dimension, with its place."""

    def reduce(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return value(x)
        return value(x, dim, keepdims=keepdim), place(x, dim, keepdims=keepdim)

    return reduce


def _shares(function: Any) -> Any:
    """A softmax, whose third argument is a type, or whether the type of 16 bits is kept."""

    def softmax(x: Any, dim: int, dtype: Any = None) -> Any:
        return function(wide(converted(x, None if isinstance(dtype, bool) else dtype)), dim)

    return softmax


table(
    {
        "amax": _over(jnp.max),
        "amin": _over(jnp.min),
        "any any.dim any.dims": _over(jnp.any),
        "argmax": _over(jnp.argmax),
        "argmin": _over(jnp.argmin),
        "log_softmax.int _log_softmax": _shares(jax.nn.log_softmax),
        "max max.dim": _extreme(jnp.max, jnp.argmax),
        "mean mean.dim": _in_type(jnp.mean),
        "min min.dim": _extreme(jnp.min, jnp.argmin),
        "prod prod.dim_int": _in_type(jnp.prod, lambda x: x),
        "softmax.int _softmax": _shares(jax.nn.softmax),
        "sum.dim_IntList": _in_type(jnp.sum),
    }
)


@aten("var.correction")
def _var(x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return jnp.var(
        wide(x), _dims(dims), ddof=1 if correction is None else correction, keepdims=keepdim
    )


@aten("var_mean.correction")
def _var_mean(x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    mean = jnp.mean(wide(x), _dims(dims), keepdims=keepdim)
    return _var(x, dims, correction=correction, keepdim=keepdim), mean


@aten("cumsum")
def _cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = converted(x, dtype)
    return jnp.cumsum(x.astype(jnp.int32) if x.dtype == jnp.bool_ else x, dim) if x.ndim else x


@aten("cumprod")
def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    return jnp.cumprod(converted(x, dtype), dim) if x.ndim else x


@aten("linalg_vector_norm")
def _norm(
    x: Any, ord: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    x, axes = wide(converted(x, dtype)), _dims(dims)
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x)), axes, keepdims=keepdim))
    if ord == float("inf"):
        return jnp.max(jnp.abs(x), axes, keepdims=keepdim)
    return jnp.sum(jnp.abs(x) ** ord, axes, keepdims=keepdim) ** (1 / ord)


@aten("topk")
def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    moved = jnp.moveaxis(x if largest else -x, dim, -1)
    values, places = jax.lax.top_k(moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


@aten("sort")
def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _sort_stable(x, stable=True, dim=dim, descending=descending)


@aten("sort.stable")
def _sort_stable(x: Any, *, stable: Any = True, dim: int = -1, descending: bool = False) -> Any:
    places = jnp.argsort(x, dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, places, dim), places
