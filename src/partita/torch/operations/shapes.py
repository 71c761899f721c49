"""Operations that change shapes, move elements, or put tensors together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten

_END = 2**62
"""Torch's `slice` stops at 2**63 - 1 where it goes on to the end."""


@aten("view _unsafe_view reshape view_copy _reshape_alias")
def _view(x: Any, shape: Sequence[int], *_: Any) -> Any:
    return jnp.reshape(x, tuple(shape))


@aten("permute permute_copy")
def _permute(x: Any, dims: Sequence[int]) -> Any:
    return jnp.transpose(x, [dim % x.ndim for dim in dims])


@aten("transpose.int")
def _transpose(x: Any, a: int, b: int) -> Any:
    return jnp.swapaxes(x, a, b) if x.ndim else x


@aten("t")
def _t(x: Any) -> Any:
    return jnp.swapaxes(x, 0, 1) if x.ndim > 1 else x


@aten("unsqueeze unsqueeze_copy")
def _unsqueeze(x: Any, dim: int) -> Any:
    return jnp.expand_dims(x, dim)


@aten("squeeze squeeze.dim squeeze.dims squeeze_copy.dims")
def _squeeze(x: Any, dims: Any = None) -> Any:
    every = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return jnp.squeeze(x, tuple(d % x.ndim for d in every if x.shape[d] == 1)) if x.ndim else x


@aten("expand expand_copy")
def _expand(x: Any, shape: Sequence[int], implicit: bool = False) -> Any:
    new = len(shape) - x.ndim
    sizes = [x.shape[d - new] if size == -1 else size for d, size in enumerate(shape)]
    return jnp.broadcast_to(x, tuple(sizes))


@aten("slice.Tensor slice_copy.Tensor")
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, None if end is None or end > _END else end, step)
    return x[tuple(index)]


@aten("slice_scatter")
def _slice_scatter(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, None if end is None or end > _END else end, step)
    return x.at[tuple(index)].set(source)


@aten("select.int select_copy.int")
def _select(x: Any, dim: int, index: int) -> Any:
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


@aten("select_scatter")
def _select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    where = [slice(None)] * x.ndim
    where[dim] = index  # type: ignore[call-overload]
    return x.at[tuple(where)].set(source)


@aten("cat concat")
def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    kept = [t for t in tensors if t.shape != (0,)]  # torch leaves out empty vectors
    return jnp.concatenate(kept, dim)


@aten("stack")
def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    return jnp.stack(tensors, dim)


def _parts(x: Any, sizes: Sequence[int], dim: int) -> list[Any]:
    made, at = [], 0
    for size in sizes:
        made.append(jax.lax.slice_in_dim(x, at, at + size, axis=dim))
        at += size
    return made


@aten("split_with_sizes split_with_sizes_copy split.sizes")
def _split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    return _parts(x, sizes, dim)


@aten("split.Tensor split_copy.Tensor")
def _split(x: Any, size: int, dim: int = 0) -> Any:
    total = x.shape[dim]
    return _parts(x, [min(size, total - at) for at in range(0, total, size)], dim)


@aten("chunk")
def _chunk(x: Any, count: int, dim: int = 0) -> Any:
    return _split(x, math.ceil(x.shape[dim] / count), dim)


@aten("unbind.int unbind_copy.int")
def _unbind(x: Any, dim: int = 0) -> Any:
    parts = _parts(x, [1] * x.shape[dim], dim)
    return [jnp.squeeze(part, dim) for part in parts]


@aten("flatten.using_ints")
def _flatten(x: Any, start: int = 0, end: int = -1) -> Any:
    first, last = start % x.ndim, end % x.ndim
    return jnp.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))


@aten("flip")
def _flip(x: Any, dims: Sequence[int]) -> Any:
    return jnp.flip(x, tuple(dims))


@aten("roll")
def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return jnp.roll(x, shifts[0])
    return jnp.roll(x, tuple(shifts), tuple(dims))


@aten("repeat")
def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    return jnp.tile(x, tuple(repeats))


@aten("repeat_interleave.self_int")
def _repeat_interleave(x: Any, repeats: int, dim: Any = None, **_: Any) -> Any:
    return jnp.repeat(x, repeats, dim)


@aten("constant_pad_nd")
def _pad(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    widths = [(0, 0, 0)] * x.ndim
    for number in range(len(pad) // 2):
        widths[x.ndim - 1 - number] = (pad[2 * number], pad[2 * number + 1], 0)
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), widths)


@aten("diagonal diagonal_copy")
def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, dim1, dim2)


@aten("tril")
def _tril(x: Any, diagonal: int = 0) -> Any:
    return jnp.tril(x, diagonal)


@aten("triu")
def _triu(x: Any, diagonal: int = 0) -> Any:
    return jnp.triu(x, diagonal)


@aten("pixel_shuffle")
def _pixel_shuffle(x: Any, factor: int) -> Any:
    *batch, channels, height, width = x.shape
    made = channels // factor**2
    x = jnp.reshape(x, (*batch, made, factor, factor, height, width))
    n = len(batch)
    x = jnp.transpose(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return jnp.reshape(x, (*batch, made, height * factor, width * factor))
