"""Tensors made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from partita.torch.operations.registry import aten
from partita.torch.operations.types import jax_type


def _type(dtype: torch.dtype | None, like: Any = None) -> Any:
    if dtype is not None:
        return jax_type(dtype)
    return jax_type(torch.get_default_dtype()) if like is None else like.dtype


@aten("arange.start_step")
def _arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any) -> Any:
    if dtype is None:
        return jnp.arange(start, end, step)
    return jnp.arange(start, end, step, dtype=jax_type(dtype))


@aten("arange.start")
def _arange_start(start: Any, end: Any, **options: Any) -> Any:
    return _arange(start, end, 1, **options)


@aten("arange")
def _arange_end(end: Any, **options: Any) -> Any:
    return _arange(0, end, 1, **options)


@aten("linspace")
def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.linspace(start, end, steps, dtype=_type(dtype))


@aten("full")
def _full(shape: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(tuple(shape), value, None if dtype is None else jax_type(dtype))


@aten("full_like")
def _full_like(x: Any, value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(x.shape, value, _type(dtype, x))


@aten("zeros empty.memory_format empty_strided empty_permuted")
def _zeros(shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> Any:
    return jnp.zeros(tuple(shape), _type(dtype))


@aten("ones")
def _ones(shape: Sequence[int], *, dtype: Any = None, **_: Any) -> Any:
    return jnp.ones(tuple(shape), _type(dtype))


@aten("zeros_like empty_like")
def _zeros_like(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.zeros(x.shape, _type(dtype, x))


@aten("ones_like")
def _ones_like(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.ones(x.shape, _type(dtype, x))


@aten("new_zeros new_empty new_empty_strided")
def _new_zeros(x: Any, shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> Any:
    return jnp.zeros(tuple(shape), _type(dtype, x))


@aten("new_ones")
def _new_ones(x: Any, shape: Sequence[int], *, dtype: Any = None, **_: Any) -> Any:
    return jnp.ones(tuple(shape), _type(dtype, x))


@aten("new_full")
def _new_full(x: Any, shape: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(tuple(shape), value, _type(dtype, x))


@aten("fill.Scalar fill.Tensor")
def _fill(x: Any, value: Any) -> Any:
    return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)


@aten("scalar_tensor")
def _scalar(value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.asarray(value, _type(dtype))


@aten("eye eye.m")
def _eye(rows: int, columns: Any = None, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.eye(rows, columns, dtype=_type(dtype))


@aten("rand randn rand_like randn_like randint randint.low randint_like normal_functional randperm")
def _random(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("random numbers inside of a module; pass them in")
