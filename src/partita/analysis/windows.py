"""Use windows: groups of the uses of a value that share one gathered copy."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from partita.program.ir import Program


class Between(enum.IntEnum):
    """Uses of a value between which a gathered copy is dropped, to be gathered again."""

    NONE = 0
    """One copy is kept from the first use to the last."""
    FAR = 1
    """Uses that are more than the window of the device type apart."""
    ALL = 2
    """Any two uses, except those inside loops and branches, for which copies exist before."""


def use_windows(
    program: Program, uses: Sequence[tuple[int, int]], regather_window: int | None
) -> list[int]:
    """Returns the window number of each use of one value, in the order in which they are read."""
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


def single_uses(
    program: Program, value: int, uses: Sequence[tuple[int, int]], windows: Sequence[int]
) -> list[int]:
    """Returns window numbers with each window split into single uses, where possible.

    Uses inside of loops and branches share with each other, since what they need is gathered
    before these begin.
    """
    if len(uses) < 2:
        return [0] * len(uses)
    home = _home(program, value)
    numbers: dict[tuple[int, int], int] = {}
    found = []
    for use, window in zip(uses, windows, strict=True):
        at = program.read_at(*use)
        inside = program.operations[at].region != home
        found.append(numbers.setdefault((window, -1 if inside else at), len(numbers)))
    return found


def _home(program: Program, value: int) -> int:
    """Returns the region that a value is defined in."""
    producer = program.values[value].producer
    return 0 if producer is None else program.operations[producer].region
