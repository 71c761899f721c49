"""Operations that change shapes, move elements, or put tensors together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten, table

_END = 2**62
"""Torch's `slice` stops at 2**63 - 1 where it goes on to the end."""


table(
    {
        "diagonal": jnp.diagonal,
        "unsqueeze": jnp.expand_dims,
    }
)


@aten("view view_copy")
def _view(x: Any, shape: Sequence[int], *_: Any) -> Any:
    return jnp.reshape(x, tuple(shape))


@aten("permute permute_copy")
def _permute(x: Any, dims: Sequence[int]) -> Any:
    return jnp.transpose(x, [dim % x.ndim for dim in dims])


@aten("squeeze.dims")
def _squeeze(x: Any, dims: Any = None) -> Any:
    every = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return jnp.squeeze(x, tuple(d % x.ndim for d in every if x.shape[d] == 1)) if x.ndim else x


@aten("expand")
def _expand(x: Any, shape: Sequence[int], implicit: bool = False) -> Any:
    new = len(shape) - x.ndim
    sizes = [x.shape[d - new] if size == -1 else size for d, size in enumerate(shape)]
    return jnp.broadcast_to(x, tuple(sizes))


def _place(x: Any, dim: int, where: Any) -> tuple[Any, ...]:
    """The index of a part of one dimension, and of all of the others."""
    return (slice(None),) * (dim % x.ndim) + (where,)


def _range(start: Any, end: Any, step: int) -> slice:
    return slice(start, None if end is None or end > _END else end, step)


@aten("slice.Tensor slice_copy.Tensor")
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[_place(x, dim, _range(start, end, step))]


@aten("slice_scatter")
def _slice_scatter(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    return x.at[_place(x, dim, _range(start, end, step))].set(source)


@aten("select.int select_copy.int")
def _select(x: Any, dim: int, index: int) -> Any:
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


@aten("cat")
def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    kept = [t for t in tensors if t.shape != (0,)]  # torch leaves out empty vectors
    return jnp.concatenate(kept, dim)


def _parts(x: Any, sizes: Sequence[int], dim: int) -> list[Any]:
    made, at = [], 0
    for size in sizes:
        made.append(jax.lax.slice_in_dim(x, at, at + size, axis=dim))
        at += size
    return made


@aten("split_with_sizes")
def _split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    return _parts(x, sizes, dim)


@aten("split_copy.Tensor")
def _split(x: Any, size: int, dim: int = 0) -> Any:
    total = x.shape[dim]
    return _parts(x, [min(size, total - at) for at in range(0, total, size)], dim)


@aten("unbind_copy.int")
def _unbind(x: Any, dim: int = 0) -> Any:
    parts = _parts(x, [1] * x.shape[dim], dim)
    return [jnp.squeeze(part, dim) for part in parts]


@aten("flip")
def _flip(x: Any, dims: Sequence[int]) -> Any:
    return jnp.flip(x, tuple(dims))


@aten("repeat")
def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    return jnp.tile(x, tuple(repeats))


@aten("constant_pad_nd")
def _pad(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    widths = [(0, 0, 0)] * x.ndim
    for number in range(len(pad) // 2):
        widths[x.ndim - 1 - number] = (pad[2 * number], pad[2 * number + 1], 0)
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), widths)
