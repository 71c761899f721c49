"""Where the axes of a mesh lie on the sides of a torus.

A torus has two or three sides. As long as there are no more axes, each lies along a side of its
own. Others share: an axis whose neighbours are `stride` devices apart along a side has as many
lines there, one beside the other, on the same links. And an axis that is longer than any side goes
along several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Along:
    """A part of an axis along a side."""

    side: int
    """Its number."""
    size: int
    """Devices of the axis along it."""
    stride: int = 1
    """How far apart neighbours are."""
    length: int = 0
    """Devices along the whole side."""


def lay(sizes: Mapping[int, int], sides: int | None, longest: int | None) -> dict[int, list[Along]]:
    """Lays axes along sides, those that share one with the last axis innermost.

    Args:
      sizes: devices along each axis, more than one.
      sides: how many the torus has; as many as there are axes if None.
      longest: the most devices along a side; any number if None.
    """
    fit = all(size <= (longest or size) for size in sizes.values())
    if fit and len(sizes) <= (sides or len(sizes)):
        return {axis: [Along(axis, size, 1, size)] for axis, size in sizes.items()}
    count = sides or len(sizes)
    rooms = list(equal_sides(math.prod(sizes.values()), count, longest))
    placed: dict[int, list[tuple[int, int]]] = {side: [] for side in range(count)}
    for axis in sorted(sizes, key=lambda axis: (-sizes[axis], -axis)):
        for side, size in _shared_out(sizes[axis], rooms, placed):
            placed[side].append((axis, size))
    found: dict[int, list[Along]] = {axis: [] for axis in sizes}
    for side, parts in placed.items():
        length, stride = math.prod(size for _, size in parts), 1
        for axis, size in sorted(parts, reverse=True):
            found[axis].append(Along(side, size, stride, length))
            stride *= size
    return found


def equal_sides(devices: int, sides: int, longest: int | None = None) -> tuple[int, ...]:
    """The sides of a torus of so many devices, as equal as can be, the longest first."""
    if sides == 1:
        return (devices,)
    first = min(
        (
            each
            for each in range(1, devices + 1)
            if devices % each == 0 and each**sides >= devices and each <= (longest or each)
        ),
        default=devices,
    )
    return (first, *equal_sides(devices // first, sides - 1, longest))


def _shared_out(
    size: int, rooms: list[int], placed: Mapping[int, list[tuple[int, int]]]
) -> Iterator[tuple[int, int]]:
    """The sides that an axis goes along, with its devices there: one that has room for it, or
    several that each have some."""

    def preferred(side: int) -> tuple[int, int, int]:
        return math.gcd(rooms[side], size), rooms[side], -len(placed[side])

    while size > 1:
        side = max(placed, key=preferred)
        fits = math.gcd(rooms[side], size)
        fits = size if fits == 1 else fits  # nowhere is room for it
        rooms[side] = max(rooms[side] // fits, 1)
        yield side, fits
        size //= fits
