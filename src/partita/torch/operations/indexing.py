"""Looking up and writing at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten


@aten("embedding")
def _embedding(weight: Any, indices: Any, padding: int = -1, *_: Any) -> Any:
    if padding >= 0:  # its row has no gradient
        row = jax.lax.broadcasted_iota(jnp.int32, weight.shape, 0)
        weight = jnp.where(row == padding, jax.lax.stop_gradient(weight), weight)
    return weight[indices]


@aten("index.Tensor")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return x[tuple(slice(None) if i is None else i for i in indices)]


@aten("index_select")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    return jnp.take(x, index, dim)


@aten("gather")
def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    within = tuple(
        slice(None) if d == dim % x.ndim else slice(0, size) for d, size in enumerate(index.shape)
    )
    return jnp.take_along_axis(x[within], index, dim)


@aten("index_put")
def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    at = x.at[tuple(slice(None) if i is None else i for i in indices)]
    return at.add(values) if accumulate else at.set(values)


def _places(index: Any, dim: int) -> tuple[Any, ...]:
    """Returns the indices that the elements of an index tensor of `scatter` point to."""
    grids = [jax.lax.broadcasted_iota(jnp.int32, index.shape, d) for d in range(index.ndim)]
    grids[dim % index.ndim] = index
    return tuple(grids)


def _within(source: Any, index: Any) -> Any:
    """The part of a source that `scatter` reads: as much as there are indices."""
    if jnp.ndim(source) == 0:
        return source
    return source[tuple(slice(0, size) for size in index.shape)]


@aten("scatter.src scatter.value")
def _scatter(x: Any, dim: int, index: Any, source: Any) -> Any:
    return x.at[_places(index, dim)].set(_within(source, index))


@aten("scatter_add")
def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    return x.at[_places(index, dim)].add(_within(source, index))


@aten("scatter_reduce.two")
def _scatter_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    kinds = {"sum": "add", "prod": "multiply", "amax": "max", "amin": "min"}
    if reduce not in kinds or not include_self:
        raise NotImplementedError(f"scatter_reduce of {reduce}, include_self={include_self}")
    at = x.at[_places(index, dim)]
    return getattr(at, kinds[reduce])(_within(source, index))


@aten("one_hot")
def _one_hot(x: Any, classes: int = -1) -> Any:
    if classes < 0:
        raise NotImplementedError("one_hot without num_classes depends on the numbers")
    return jax.nn.one_hot(x, classes, dtype=jnp.int32)


@aten("bucketize.Tensor searchsorted.Tensor")
def _bucketize(x: Any, bounds: Any, *, right: bool = False, **_: Any) -> Any:
    return jnp.searchsorted(bounds, x, side="right" if right else "left")


@aten("nonzero masked_select unique _unique2 unique_dim _local_scalar_dense")
def _dependent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("the shape of its result depends on the numbers")
