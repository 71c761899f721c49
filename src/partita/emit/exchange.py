"""Exchanges along a dimension as StableHLO: blocks to send, and windows assembled from blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.spmd.exchange import Block, Send, Window
from partita.stablehlo.builder import Builder
from partita.stablehlo.building import cut, joined, padded, shape_of, with_shape, within
from partita.stablehlo.mlir import hlo
from partita.tiling import Axes


def sent(build: Builder, value: Any, dim: int, send: Send, axes: Axes) -> Any:
    """Returns the block of its value that each device sends."""
    if len(set(send.starts)) == 1:
        return cut(value, dim, send.starts[0], send.starts[0] + send.size)
    shape = shape_of(value)
    shape[dim] = send.size
    return build.slice(value, shape, {dim: build.listed(send.starts, axes)})


def window(build: Builder, parts: Sequence[Any], dim: int, made: Window, axes: Axes) -> Any:
    """Assembles the window of each device.

    Args:
      build: builder at the insertion point.
      parts: a device's values; the window's blocks are ranges of their concatenation.
      dim: the dimension.
      made: the window.
      axes: that split the dimension.
    """
    if made.parts is not None:
        return joined([_cut(parts, dim, *at) for at in made.parts], dim)
    total = None
    for block in made.blocks:
        value = _cut(parts, dim, block.start, block.start + block.size)
        value = _placed(build, value, dim, block, made.size, axes)
        if total is None and _exact(block, made.size):
            total = value
            continue
        if total is None:
            total = build.fill(value.type, 0)
        begins, ends = zip(*(fill or (0, 0) for fill in block.fills), strict=True)
        begin, end = build.listed(begins, axes), build.listed(ends, axes)
        total = hlo.select(within(value.type, dim, begin, end), value, total)
    if total is None:
        shape = shape_of(parts[0])
        shape[dim] = made.size
        total = build.fill(with_shape(parts[0], shape), 0)
    return total


def _cut(parts: Sequence[Any], dim: int, start: int, stop: int) -> Any:
    """Returns a range of the concatenation of several parts; it is within one of them."""
    for part in parts:
        size = shape_of(part)[dim]
        if start < size:
            return cut(part, dim, start, stop)
        start, stop = start - size, stop - size
    raise AssertionError("beyond all parts")


def _placed(build: Builder, value: Any, dim: int, block: Block, size: int, axes: Axes) -> Any:
    """Returns a block at its place in a window of this size, padded with zeros."""
    first, last = min(block.at), max(block.at)
    if first == last:
        return padded(value, dim, last, size - block.size - last)
    low, high = max(0, last), max(0, size - block.size - first)
    value = padded(value, dim, low, high)
    shape = shape_of(value)
    shape[dim] = size
    return build.slice(value, shape, {dim: build.listed([low - at for at in block.at], axes)})


def _exact(block: Block, size: int) -> bool:
    """Returns whether every device keeps all of the block that overlaps the window."""
    places = zip(block.fills, block.at, strict=True)
    return all(
        (fill or (0, 0)) == (max(0, at), max(0, min(size, at + block.size))) for fill, at in places
    )
