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
    """Value numbers of one operand, from repetition to repetition."""

    first: int
    second: int
    step: int
    """Increase of the number per repetition, from the second one on."""

    @property
    def regular(self) -> bool:
        """True if the first step is like all others."""
        return self.second == self.first + self.step


@dataclasses.dataclass(frozen=True, slots=True)
class Repeat:
    """Instructions `start..start + period`, and so on, `count` times in all."""

    start: int
    period: int
    count: int
    stride: int
    """Increase, per repetition, of the numbers of the values that they make."""
    reads: tuple[tuple[Read, ...], ...]
    """Operands of every instruction of the first repetition."""

    @property
    def saved(self) -> int:
        """Number of instructions that need not be written."""
        return (self.count - 1) * self.period

    @property
    def end(self) -> int:
        """The first instruction after it."""
        return self.start + self.period * self.count


def repeats(
    keys: Sequence[Hashable],
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
    least: int = LEAST,
    levels: Sequence[int] = (),
) -> list[Repeat]:
    """Finds the repeats of a sequence, longest first; returns them in order, without overlap.

    Args:
      keys: for every instruction, what makes it equal to another one; instructions of one key read
        and make equally many things.
      reads: for every instruction, the numbers of what it reads.
      makes: the numbers of what it makes, each made once.
      least: how many instructions a repeat saves at least.
      levels: how deep every instruction is, if some are inside of others, part of the key then: a
        repetition begins at its lowest level, and what is inside of its last instruction ends
        with it.
    """
    numbers: dict[Hashable, int] = {}
    order = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32)
    depth = np.array(levels or [0] * len(keys), dtype=np.int32)
    spans = _spans(order, least)
    found: list[Repeat] = []
    waiting = [(0, len(keys))]
    while waiting:
        low, high = waiting.pop()
        best = _best(spans, low, high, reads, makes, depth, least)
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
    levels: np.ndarray,
    least: int,
) -> Repeat | None:
    """Returns the repeat between two places that saves most, together with others of its period."""
    periods = spans[:, 0]
    starts, ends = np.maximum(spans[:, 1], low), np.minimum(spans[:, 2], high)
    saved = ((ends - starts) // periods - 1) * periods
    best: Repeat | None = None
    most = 0
    for i in np.argsort(-saved, kind="stable").tolist():
        if saved[i] < least or saved[i] <= most:
            break
        period, end = int(periods[i]), int(ends[i])
        start = _beginning(int(starts[i]), end, period, levels)
        if start is None:
            continue
        count = (end - start) // period
        wired, together = _wired(start, period, count, reads, makes)
        if wired is not None and wired.saved >= least and together > most:
            best, most = wired, together
    return best


def _beginning(start: int, end: int, period: int, levels: np.ndarray) -> int | None:
    """Returns where repetitions can begin so that each is whole: none ends in an instruction."""
    # Any period of a stretch has the same levels.
    last = min(start + period, end - 2 * period + 1)
    lowest = levels[start : start + period].min()
    for begin in (start + np.flatnonzero(levels[start:last] == lowest)).tolist():
        behind = begin + (end - begin) // period * period
        if behind == len(levels) or levels[behind] <= lowest:
            return int(begin)
    return None


def _wired(
    start: int,
    period: int,
    count: int,
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
) -> tuple[Repeat | None, int]:
    """Returns the longest run of repetitions wired alike, and what all such runs save."""

    def rows(numbers: Sequence[Sequence[int]]) -> np.ndarray:
        flat = [n for each in numbers[start : start + period * count] for n in each]
        return np.array(flat, dtype=np.int64).reshape(count, -1)

    read, made = rows(reads), rows(makes)
    up, more = np.diff(made, axis=0), np.diff(read, axis=0)
    strides = up[:, 0] if made.shape[1] else np.zeros(count - 1, np.int64)
    even = (up == strides[:, None]).all(axis=1)
    best: Repeat | None = None
    first = together = 0
    behind = 0  # the last run, whose last repetition may begin another one
    while first < count - 1:
        length = _length(first, read, made, more, strides, even)
        together += max(0, length - 1 - (first < behind)) * period
        behind = first + length if length > 1 else behind
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
    return best, together


def _length(
    first: int,
    read: np.ndarray,
    made: np.ndarray,
    more: np.ndarray,
    strides: np.ndarray,
    even: np.ndarray,
) -> int:
    """Returns the number of repetitions, from this one on, with the same wiring."""
    inner = np.isin(read[first], made[first])
    if not even[first] or (more[first][inner] != strides[first]).any():
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
