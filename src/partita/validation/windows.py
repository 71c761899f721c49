"""Indices of a sharded dimension that each device holds while shards exchange their halos."""

from __future__ import annotations

import functools

import numpy as np

from partita.program.rule import Reach
from partita.spmd.exchange import Send, Window
from partita.validation.state import Content, expect

ZERO = -1

_BEYOND = "a window has parts beyond what there is"


def own(size: int, shards: int) -> Content:
    """Returns the indices of each shard, which devices hold before the exchange."""
    return np.arange(size).reshape(shards, -1) if size else np.zeros((shards, 0), np.int64)


@functools.lru_cache(maxsize=4096)
def required(reach: Reach, size: int, shards: int) -> Content:
    """Returns the indices of the dimension that an operation reads on each device."""
    starts = np.array([reach.first(device, shards) for device in range(shards)])
    found = starts[:, None] + np.arange(reach.length(shards))
    if reach.wraps:
        return found % size
    return np.where((found < 0) | (found >= size), ZERO, found)


def received(held: Content, send: Send) -> Content:
    """Returns the indices held after a round: each device appends the block that it receives."""
    shards = len(held)
    expect(len(send.starts) == shards, "a round has blocks of other shards")
    for side in zip(*send.pairs, strict=True):
        expect(len(set(side)) == len(side), "a device sends or receives twice in a round")
    got = np.full((shards, send.size), ZERO)
    for sender, receiver in send.pairs:
        start = send.starts[sender]
        expect(0 <= start <= held.shape[1] - send.size, "a block begins outside of what there is")
        got[receiver] = held[sender, start : start + send.size]
    return np.concatenate([held, got], axis=1)


def put_together(held: Content, window: Window) -> Content:
    """Returns the indices of each device's window, put together from those that it holds."""
    most = held.shape[1]
    if window.parts is not None:
        expect(all(0 <= a <= b <= most for a, b in window.parts), _BEYOND)
        return np.concatenate([held[:, start:stop] for start, stop in window.parts], axis=1)
    found = np.full((len(held), window.size), ZERO)
    for block in window.blocks:
        for device, (at, fill) in enumerate(zip(block.at, block.fills, strict=True)):
            if fill is not None:
                begin, end = fill
                start = block.start - at
                expect(0 <= start + begin <= start + end <= most, _BEYOND)
                found[device, begin:end] = held[device, start + begin : start + end]
    return found
