"""Repeated runs in a sequence of instructions, so that a run is printed once with how often it is.

A *repeat* is a block of instructions that follows itself: instruction for instruction the same
key, and the same wiring. What an instruction makes is numbered up by one stride from repetition to
repetition; what it reads is the same each time, or numbered up by a stride of its own (the weight
of the next layer, the activations of the layer before), or, from the second time on, what the
repetition before has made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

LEAST = 4
"""Instructions that a repeat has to save to be worth its heading."""


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """What one operand is, from repetition to repetition."""

    first: int
    second: int
    step: int
    """By how much it is numbered up each time from the second on."""

    @property
    def regular(self) -> bool:
        """Whether the first step is like all others."""
        return self.second == self.first + self.step


@dataclasses.dataclass(frozen=True, slots=True)
class Repeat:
    """Instructions `start..start + period`, and so on, `count` times in all."""

    start: int
    period: int
    count: int
    stride: int
    """By how much that is numbered up which they make."""
    reads: tuple[tuple[Read, ...], ...]
    """For every instruction of the first repetition, its operands."""

    @property
    def saved(self) -> int:
        """How many instructions need not be written."""
        return (self.count - 1) * self.period

    @property
    def end(self) -> int:
        """The first instruction behind it."""
        return self.start + self.period * self.count


def repeats(
    keys: Sequence[Hashable],
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
    least: int = LEAST,
) -> list[Repeat]:
    """The repeats of a sequence, in order; they do not overlap. The longest are found first.

    Args:
      keys: for every instruction, what makes it equal to another one; instructions of one key read
        and make equally many things.
      reads: for every instruction, the numbers of what it reads.
      makes: the numbers of what it makes, each made once.
      least: how many instructions a repeat saves at least.
    """
    numbers: dict[Hashable, int] = {}
    order = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32)
    spans = _spans(order, least)
    found: list[Repeat] = []
    waiting = [(0, len(keys))]
    while waiting:
        low, high = waiting.pop()
        best = _best(spans, low, high, reads, makes, least)
        if best is not None:
            found.append(best)
            waiting += [(low, best.start), (best.end, high)]
    return sorted(found, key=lambda repeat: repeat.start)


def _spans(order: np.ndarray, least: int) -> np.ndarray:
    """Rows `(period, start, end)`: stretches that agree with themselves a period later."""
    rows = [np.empty((0, 3), np.int64)]
    for period in range(1, len(order) // 2 + 1):
        alike = order[:-period] == order[period:]
        if np.count_nonzero(alike) < max(period, least):
            continue
        edges = np.flatnonzero(np.diff(alike, prepend=False, append=False))
        starts, ends = edges[::2], edges[1::2] + period
        long = ends - starts >= 2 * period
        if long.any():
            fixed = np.full(int(long.sum()), period)
            rows.append(np.stack([fixed, starts[long], ends[long]], axis=1))
    return np.concatenate(rows)


def _best(
    spans: np.ndarray,
    low: int,
    high: int,
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
    least: int,
) -> Repeat | None:
    """The repeat between two places that saves most."""
    periods = spans[:, 0]
    starts, ends = np.maximum(spans[:, 1], low), np.minimum(spans[:, 2], high)
    saved = ((ends - starts) // periods - 1) * periods
    best: Repeat | None = None
    for i in np.argsort(-saved, kind="stable").tolist():
        if saved[i] < least or (best and saved[i] <= best.saved):
            break
        period, start = int(periods[i]), int(starts[i])
        count = (int(ends[i]) - start) // period
        wired = _wired(start, period, count, reads, makes)
        if wired is not None and wired.saved >= max(least, best.saved + 1 if best else 0):
            best = wired
    return best


def _wired(
    start: int,
    period: int,
    count: int,
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
) -> Repeat | None:
    """The longest run of repetitions, one behind the other, that are wired alike."""

    def rows(numbers: Sequence[Sequence[int]]) -> np.ndarray:
        flat = [n for each in numbers[start : start + period * count] for n in each]
        return np.array(flat, dtype=np.int64).reshape(count, -1)

    read, made = rows(reads), rows(makes)
    up, more = np.diff(made, axis=0), np.diff(read, axis=0)
    strides = up[:, 0] if made.shape[1] else np.zeros(count - 1, np.int64)
    even = (up == strides[:, None]).all(axis=1)
    best: Repeat | None = None
    first = 0
    while first < count - 1 and (best is None or count - first > best.count):
        length = _length(first, read, made, more, strides, even)
        if length > 1 and (best is None or length > best.count):
            at = start + first * period
            second = more[min(first + 1, first + length - 2)]
            columns = iter(zip(read[first], read[first + 1], second, strict=True))
            wiring = tuple(
                tuple(Read(*map(int, next(columns))) for _ in reads[i])
                for i in range(at, at + period)
            )
            best = Repeat(at, period, length, int(strides[first]), wiring)
        first += max(1, length - 1)
    return best


def _length(
    first: int,
    read: np.ndarray,
    made: np.ndarray,
    more: np.ndarray,
    strides: np.ndarray,
    even: np.ndarray,
) -> int:
    """How many repetitions from this one on are wired alike."""
    if not even[first]:
        return 1
    length = 2
    while first + length < len(read):
        last = first + length - 1  # from this repetition to the next
        if not even[last] or strides[last] != strides[first]:
            break
        alike = more[last] == more[last - 1]
        if length == 2:
            # In the second repetition, something of the first may take over.
            carried = np.isin(read[first + 1], made[first]) & (more[last] == strides[first])
            alike = alike | carried
        if not alike.all():
            break
        length += 1
    return length
