"""Reductions, cumulative sums and sorting."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten
from partita.torch.operations.types import converted, wide


def _dims(dims: Any) -> Any:
    if dims is None or dims == []:
        return None
    return dims if isinstance(dims, int) else tuple(dims)


@aten("sum sum.dim_IntList")
def _sum(x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return jnp.sum(wide(converted(x, dtype)), _dims(dims), keepdims=keepdim)


@aten("mean mean.dim")
def _mean(x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return jnp.mean(wide(converted(x, dtype)), _dims(dims), keepdims=keepdim)


@aten("amax")
def _amax(x: Any, dims: Any = (), keepdim: bool = False) -> Any:
    return jnp.max(x, _dims(list(dims)), keepdims=keepdim)


@aten("amin")
def _amin(x: Any, dims: Any = (), keepdim: bool = False) -> Any:
    return jnp.min(x, _dims(list(dims)), keepdims=keepdim)


@aten("max max.dim")
def _max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return jnp.max(x)
    return jnp.max(x, dim, keepdims=keepdim), jnp.argmax(x, dim, keepdims=keepdim)


@aten("min min.dim")
def _min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return jnp.min(x)
    return jnp.min(x, dim, keepdims=keepdim), jnp.argmin(x, dim, keepdims=keepdim)


@aten("any any.dim any.dims")
def _any(x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return jnp.any(x, _dims(dims), keepdims=keepdim)


@aten("all all.dim all.dims")
def _all(x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return jnp.all(x, _dims(dims), keepdims=keepdim)


@aten("prod prod.dim_int")
def _prod(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return jnp.prod(converted(x, dtype), dim, keepdims=keepdim)


@aten("var.correction")
def _var(x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return jnp.var(
        wide(x), _dims(dims), ddof=1 if correction is None else correction, keepdims=keepdim
    )


@aten("std.correction")
def _std(x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return jnp.sqrt(_var(x, dims, correction=correction, keepdim=keepdim))


@aten("var_mean.correction")
def _var_mean(x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    mean = jnp.mean(wide(x), _dims(dims), keepdims=keepdim)
    return _var(x, dims, correction=correction, keepdim=keepdim), mean


@aten("argmax")
def _argmax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.argmax(x, dim, keepdims=keepdim)


@aten("argmin")
def _argmin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.argmin(x, dim, keepdims=keepdim)


@aten("cumsum")
def _cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = converted(x, dtype)
    return jnp.cumsum(x.astype(jnp.int32) if x.dtype == jnp.bool_ else x, dim) if x.ndim else x


@aten("cumprod")
def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    return jnp.cumprod(converted(x, dtype), dim) if x.ndim else x


@aten("logsumexp")
def _logsumexp(x: Any, dims: Any, keepdim: bool = False) -> Any:
    return jax.scipy.special.logsumexp(x, axis=_dims(dims), keepdims=keepdim)


@aten("linalg_vector_norm norm.Scalar norm.ScalarOpt_dim")
def _norm(
    x: Any, ord: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    x, axes = wide(converted(x, dtype)), _dims(dims)
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x)), axes, keepdims=keepdim))
    if ord == float("inf"):
        return jnp.max(jnp.abs(x), axes, keepdims=keepdim)
    return jnp.sum(jnp.abs(x) ** ord, axes, keepdims=keepdim) ** (1 / ord)


@aten("softmax.int _softmax _safe_softmax")
def _softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    x = wide(x) if isinstance(dtype, bool) else wide(converted(x, dtype))
    return jax.nn.softmax(x, dim)


@aten("log_softmax.int _log_softmax")
def _log_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    x = wide(x) if isinstance(dtype, bool) else wide(converted(x, dtype))
    return jax.nn.log_softmax(x, dim)


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
