"""Use windows: groups of the uses of a value that share one gathered copy."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from partita.program.ir import Program


class Between(enum.IntEnum):
    """Uses of a value between which a gathered copy is dropped, to be gathered again."""

    NONE = 0
    """One copy is kept from the first use to the last."""
    FAR = 1
    """Uses that are more than the window of the device type apart."""
    ALL = 2
    """Any two uses, except those inside loops and branches, for which copies exist before."""
    ITERATIONS = 3
    """Any two uses as for `ALL`; in loops around uses also iterations, and in each iteration uses
    that are far apart."""
    EACH = 4
    """Any two uses, those in each iteration of loops around them included."""

    @property
    def in_loops(self) -> bool:
        """True if copies are gathered in each iteration of the loops around uses."""
        return self > Between.ALL


class Window(NamedTuple):
    """Use window of a value, in the region of the value itself or in the body of a loop."""

    number: int
    body: int = 0
    """Region of the loop body that gathers the copy in each iteration; 0 if none does."""
    runs: int = 1
    """Number of times that the copy is gathered, for each time that the value is made."""


def use_windows(
    program: Program, uses: Sequence[tuple[int, int]], regather_window: int | None
) -> list[int]:
    """Returns the number of the group of near uses that each use of one value belongs to, in the
    order in which they are read."""
    if regather_window is None:
        return [0] * len(uses)
    window, previous, found = 0, None, []
    for use in uses:
        at = program.read_at(*use)
        if previous is not None and at - previous > regather_window:
            window += 1
        found.append(window)
        previous = at
    return found


def windows_between(
    program: Program, value: int, uses: Sequence[tuple[int, int]], near: Sequence[int]
) -> tuple[list[Window], ...]:
    """Returns the window of each use of one value, by `Between`.

    Uses inside of a loop or branch share with each other, since what they need is gathered before
    it begins; if it is gathered in each iteration, those in inner loops and branches do.

    Args:
      program: the program.
      value: the value.
      uses: its uses, in the order in which they are read.
      near: the group of near uses of each.
    """
    home, start = _home(program, value), program.home(value)
    operations = program.operations
    places = [program.read_at(*use) for use in uses]
    if len(places) < 2 and all(operations[at].region == home for at in places):
        return ([Window(0)] * len(places),) * len(Between)  # as most values
    ahead: dict[int, int] = {}
    bodies: list[tuple[int, int]] = []
    far: list[Hashable] = []
    single: list[Hashable] = []
    iterations: list[Hashable] = []
    each: list[Hashable] = []
    for at, group in zip(places, near, strict=True):
        region = operations[at].region
        loop, trips = (0, 0) if region == home else _outermost_loop(program, start, region)
        far.append(ahead.setdefault(loop, group) if loop else group)
        single.append((0, far[-1], at if region == home else -1))
        bodies.append((loop, trips) if trips else (0, 1))
        inner = _outermost_loop(program, loop, region)[0] if trips else 0
        iterations.append((loop, group, -1) if trips else single[-1])
        alone = at if region == loop else -1 - inner
        each.append((loop, group, alone) if trips else single[-1])
    kept = [Window(0)] * len(places)
    found = kept, _numbered(far), _numbered(single)
    if not any(body for body, _ in bodies):
        return (*found, found[-1], found[-1])
    return (*found, _numbered(iterations, bodies), _numbered(each, bodies))


def _numbered(
    keys: Sequence[Hashable], bodies: Sequence[tuple[int, int]] | None = None
) -> list[Window]:
    """Returns a window for each key, the same for equal ones, numbered as they appear."""
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(key, len(numbers)) for key in keys]
    if bodies is None:
        return [Window(number) for number in found]
    return [Window(number, *body) for number, body in zip(found, bodies, strict=True)]


def _home(program: Program, value: int) -> int:
    """Returns the region that a value is defined in."""
    producer = program.values[value].producer
    return 0 if producer is None else program.operations[producer].region


def _outermost_loop(program: Program, home: int, region: int) -> tuple[int, int]:
    """Returns the outermost region inside of `home` that may run repeatedly, around or as a region,
    and how often if that is known.

    Both are 0 if there is none; the second one, if that is not the body of a loop, or only running
    the loop tells how often.
    """
    around = program.around(region)
    if home not in around:
        return 0, 0
    for inner in reversed(around[: around.index(home)]):
        if program.regions[inner].repeats:
            loop = program.bodies.get(inner)
            return inner, (loop.trips or 0) if loop else 0
    return 0, 0
