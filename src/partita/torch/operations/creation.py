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


@aten("empty.memory_format empty_strided empty_permuted")
def _empty(shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> Any:
    return jnp.zeros(tuple(shape), _type(dtype))


@aten("new_empty_strided")
def _new_empty(x: Any, shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> Any:
    return jnp.zeros(tuple(shape), _type(dtype, x))


@aten("arange.start_step")
def _arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.arange(start, end, step, dtype=None if dtype is None else jax_type(dtype))


@aten("full")
def _full(shape: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(tuple(shape), value, None if dtype is None else jax_type(dtype))


@aten("full_like")
def _full_like(x: Any, value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(x.shape, value, _type(dtype, x))


@aten("scalar_tensor")
def _scalar(value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.asarray(value, _type(dtype))


@aten("rand randn rand_like randn_like randint randint.low randint_like normal_functional randperm")
def _random(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("random numbers inside of a module; pass them in")
