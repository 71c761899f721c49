"""Exchanges along a sharded dimension: each device gets the window that it reads.

The parts of a window in other shards arrive in rounds. In each round a shard sends one block, of
the same size everywhere, to one other device (a collective_permute), which appends it. In the end
the window is put together from the device's own shard and the blocks. All devices do so in the same
way where that is possible, such as for the halo of a convolution.
"""

from __future__ import annotations

import dataclasses
import functools

from partita.program.rule import Reach


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """One round: a block of each shard goes to another device; shards and devices by number."""

    size: int
    """Number of indices of a block."""
    starts: tuple[int, ...]
    """Start of the block in each shard."""
    pairs: tuple[tuple[int, int], ...]
    """Pairs of (shard that sends, device that receives)."""

    @property
    def near(self) -> bool:
        """True if blocks go to neighbours only."""
        count = len(self.starts)
        return all((b - a) % count in (1, count - 1) for a, b in self.pairs)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Contiguous indices that a device holds, and their place in its window."""

    start: int
    """Start of the block in everything that the device holds."""
    size: int
    at: tuple[int, ...]
    """Start of the block in the window, by device; negative if it starts before the window."""
    fills: tuple[tuple[int, int] | None, ...]
    """Range of the window that the block fills, by device; None if it fills none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A window put together from blocks; it is zero where no block belongs."""

    size: int
    blocks: tuple[Block, ...]

    @property
    def parts(self) -> tuple[tuple[int, int], ...] | None:
        """Ranges of what a device holds that make up the window, in order; None if devices differ.

        Blocks that some devices have not received are zeros there, as they should be.
        """
        found = []
        for number, block in enumerate(self.blocks):
            places = zip(block.fills, block.at, strict=True)
            known = {(fill, at) for fill, at in places if fill is not None}
            own = block.start == 0
            if len(known) != 1 or (own and None in block.fills):
                return None
            ((fill, at),) = known
            found.append((fill, block.start - at, number))
        found.sort()
        end = 0
        for (begin, stop), _, _ in found:
            if begin != end:
                return None
            end = stop
        if end != self.size:
            return None
        return tuple((begin + shift, stop + shift) for (begin, stop), shift, _ in found)


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a device's window that is in one shard."""

    device: int
    shard: int
    start: int
    """Start in the shard."""
    size: int
    at: int
    """Start in the window."""


def _pieces(reach: Reach, size: int, shards: int, device: int) -> list[_Piece]:
    """Returns the pieces that make up the window of a device."""
    own, found = size // shards, []
    first = reach.first(device, shards)
    index, end = first, first + reach.length(shards)
    while index < end:
        inside = index % size if reach.wraps else index
        if inside < 0:
            index = min(0, end)
            continue
        if inside >= size:
            break
        shard, start = divmod(inside, own)
        count = min(own - start, end - index)
        found.append(_Piece(device, shard, start, count, index - first))
        index += count
    return found


@functools.cache
def exchange(reach: Reach, size: int, shards: int) -> tuple[tuple[Send, ...], Window]:
    """Returns the rounds that exchange windows of a dimension, and how to put these together.

    Args:
      reach: the windows.
      size: the size of the dimension.
      shards: the number of shards that split it.
    """
    own, length = size // shards, reach.length(shards)
    pieces = [p for d in range(shards) for p in _pieces(reach, size, shards, d)]
    blocks, have = [], own
    sends = []
    for group in _rounds([p for p in pieces if p.device == p.shard]):
        blocks.append(_block(group, 0, own, (0,) * shards))
    far = [p for p in pieces if p.device != p.shard]
    # Large pieces first, and with each other those that go equally far in the same direction.
    far.sort(key=lambda p: (-p.size, (p.device - p.shard) % shards, p.device))
    for group in _rounds(far):
        most = max(p.size for p in group)
        starts = [0] * shards
        for piece in group:
            starts[piece.shard] = min(piece.start, own - most)
        if len({starts[p.shard] for p in group}) == 1:
            starts = [starts[group[0].shard]] * shards
        pairs = tuple(sorted((p.shard, p.device) for p in group))
        sends.append(Send(most, tuple(starts), pairs))
        blocks.append(_block(group, have, most, tuple(starts)))
        have += most
    return tuple(sends), Window(length, tuple(blocks))


def gathered(reach: Reach, size: int, shards: int) -> Window:
    """Returns the windows as cut out of the gathered dimension."""
    whole = dataclasses.replace(reach)
    groups = _rounds(
        [
            dataclasses.replace(piece, start=piece.start + piece.shard * (size // shards), shard=d)
            for d in range(shards)
            for piece in _joined(_pieces(whole, size, shards, d), size // shards)
        ]
    )
    return Window(
        reach.length(shards), tuple(_block(group, 0, size, (0,) * shards) for group in groups)
    )


def _joined(pieces: list[_Piece], own: int) -> list[_Piece]:
    """Joins pieces of one device that follow each other in the dimension."""
    found: list[_Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last and last.shard * own + last.start + last.size == piece.shard * own + piece.start:
            found[-1] = dataclasses.replace(last, size=last.size + piece.size)
        else:
            found.append(piece)
    return found


def _rounds(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Puts pieces into rounds, in each of which every shard sends once and receives once."""
    rounds: list[tuple[list[_Piece], set[int], set[int]]] = []
    for piece in pieces:
        free = (r for r in rounds if piece.shard not in r[1] and piece.device not in r[2])
        found = next(free, None)
        if found is None:
            found = ([], set(), set())
            rounds.append(found)
        group, senders, receivers = found
        group.append(piece)
        senders.add(piece.shard)
        receivers.add(piece.device)
    return [group for group, _, _ in rounds]


def _block(group: list[_Piece], start: int, size: int, starts: tuple[int, ...]) -> Block:
    at = [0] * len(starts)
    fills: list[tuple[int, int] | None] = [None] * len(starts)
    for piece in group:
        at[piece.device] = piece.at - (piece.start - starts[piece.shard])
        fills[piece.device] = (piece.at, piece.at + piece.size)
    return Block(start, size, tuple(at), tuple(fills))
