"""Runs of lines that repeat: where, how long, how often.

A program of 24 equal layers reads as one layer, 24 times. Lines repeat if they are alike in all
but the numbers of their values, and if these are wired alike: within an iteration, or to an
earlier one, or to whatever is outside of the run.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

LEAST = 8
"""Lines that a repetition must save to be worth it."""

LONGEST = 4096
"""Lines of the longest unit that is looked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a program, with holes for the numbers in it."""

    template: str
    """A format string: `%{} = add(%{}, %{})`."""
    numbers: tuple[int, ...]
    """What goes into the holes."""
    defines: int = 0
    """How many of them, from the front, are values that the line defines."""
    reads: int = 0
    """How many, after those, are values that it reads."""
    kind: Hashable = None
    """What else has to be alike besides the template."""
    depth: int = 0
    """How far it is indented."""
    goes_on: bool = False
    """Whether it goes on with what an earlier line of its depth has begun: a loop, say."""

    @property
    def level(self) -> int:
        """Its depth, doubled, and a little deeper if it cannot begin anything."""
        return 2 * self.depth + self.goes_on


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Repeat:
    """Lines `start` to `start + period`, which are repeated `times` times."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """The first line after all iterations."""
        return self.start + self.period * self.times


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Stretch:
    """Lines of which each is like the one a period before, where there is one."""

    start: int
    end: int
    period: int

    @property
    def repeat(self) -> Repeat:
        return Repeat(self.start, self.period, (self.end - self.start) // self.period)

    @property
    def saved(self) -> int:
        """Lines that need not be shown."""
        return self.period * (self.repeat.times - 1)


def repeats(lines: Sequence[Line]) -> list[Repeat]:
    """Repetitions that do not overlap, those that save most first chosen, in order of lines."""
    finder = _Finder(lines)
    queue = [(-each.saved, each.period, each) for each in finder.stretches()]
    heapq.heapify(queue)
    free = np.ones(len(lines), bool)
    found = []
    while queue:
        stretch = heapq.heappop(queue)[2]
        parts = list(finder.parts(stretch, free))
        if parts == [stretch]:
            found.append(stretch.repeat)
            free[stretch.start : stretch.repeat.end] = False
        together = sum(part.saved for part in parts)
        for part in parts if parts != [stretch] else ():
            heapq.heappush(queue, (-together, part.period, part))
    return sorted(found)


class _Finder:
    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        numbers: dict[Hashable, int] = {}
        kinds = ((line.template, line.kind, line.level) for line in lines)
        self.kinds = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds])
        self.levels = np.array([line.level for line in lines])
        self.defined = {
            value: (at, place)
            for at, line in enumerate(lines)
            for place, value in enumerate(line.numbers[: line.defines])
        }

    def stretches(self) -> Iterator[_Stretch]:
        """All stretches that are worth to be folded, whatever their wiring."""
        kinds = self.kinds
        for period in range(1, min(len(kinds) // 2, LONGEST) + 1):
            differ = kinds[period:] != kinds[:-period]
            least = max(period, LEAST)
            if len(differ) - np.count_nonzero(differ) < least:
                continue
            ends = np.flatnonzero(np.append(differ, True))
            starts = np.append(0, ends[:-1] + 1)
            for run in np.flatnonzero(ends - starts >= least):
                yield _Stretch(int(starts[run]), int(ends[run]) + period, period)

    def parts(self, stretch: _Stretch, free: np.ndarray) -> Iterator[_Stretch]:
        """The stretch itself if it repeats; else the parts of it that may."""
        left = stretch.start + np.flatnonzero(free[stretch.start : stretch.end])
        if len(left) < stretch.end - stretch.start:
            for part in np.split(left, np.flatnonzero(np.diff(left) > 1) + 1):
                if len(part):
                    yield from _within(int(part[0]), int(part[-1]) + 1, stretch.period)
            return
        start = self._beginning(stretch)
        if start is None:
            return
        if start > stretch.start:
            yield from _within(start, stretch.end, stretch.period)
            return
        times = self._wired_alike(stretch.repeat)
        if times == stretch.repeat.times:
            yield stretch
        elif times:
            middle = start + times * stretch.period
            yield from _within(start, middle, stretch.period)
            yield from _within(middle, stretch.end, stretch.period)

    def _beginning(self, stretch: _Stretch) -> int | None:
        """The first line at which a unit can begin that opens and closes the same loops."""
        start, period = stretch.start, stretch.period
        for begin in range(start, min(start + period, stretch.end - 2 * period + 1)):
            end = _Stretch(begin, stretch.end, period).repeat.end
            lowest = self.levels[begin : begin + period].min()
            after = self.levels[end] if end < len(self.levels) else 0
            if self.levels[begin] == lowest and after <= lowest:
                return begin
        return None

    def _wired_alike(self, repeat: Repeat) -> int:
        """How many iterations from the first one on are wired alike."""
        start, period = repeat.start, repeat.period
        wiring: dict[tuple[int, int], tuple[int, int]] = {}
        for iteration in range(repeat.times):
            base = start + iteration * period
            for offset in range(period):
                line = self.lines[base + offset]
                for hole in range(line.defines, line.defines + line.reads):
                    at, place = self.defined.get(line.numbers[hole], (-1, 0))
                    known = wiring.get((offset, hole))
                    if at < start:
                        if known is not None:
                            return iteration
                        continue
                    source = (at - base, place)
                    if known is None:
                        # Read from inside for the first time: as soon as there is such a line.
                        if at - start >= period:
                            return iteration
                        wiring[offset, hole] = source
                    elif known != source:
                        return iteration
        return repeat.times


def _within(start: int, end: int, period: int) -> Iterator[_Stretch]:
    """The stretch between two lines, if it saves enough."""
    stretch = _Stretch(start, end, period)
    if stretch.saved >= LEAST:
        yield stretch
