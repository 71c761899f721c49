"""Placement of mesh axes on the sides of a torus.

A torus has two or three sides. If there are no more axes than sides, each axis has a side of its
own. Others share: an axis whose neighbours are `stride` devices apart along a side has as many
parallel lines there, on the same links. An axis that is longer than any side goes along several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Along:
    """Part of an axis along a side."""

    side: int
    """Number of the side."""
    size: int
    """Devices of the axis along it."""
    stride: int = 1
    """Distance between neighbours, in devices along the side."""
    length: int = 0
    """Devices along the whole side."""


def lay(sizes: Mapping[int, int], sides: int | None, longest: int | None) -> dict[int, list[Along]]:
    """Places axes along sides; if axes share a side, the last axis is innermost.

    Args:
      sizes: devices along each axis, more than one.
      sides: number of sides of the torus; as many as there are axes if None.
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
    """Returns the sides of a torus of so many devices, as equal as possible, the longest first."""
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
    """Yields the sides that an axis goes along, with its devices there: one that has room for it,
    or several that each have some."""

    def preferred(side: int) -> tuple[int, int, int]:
        return math.gcd(rooms[side], size), rooms[side], -len(placed[side])

    while size > 1:
        side = max(placed, key=preferred)
        fits = math.gcd(rooms[side], size)
        fits = size if fits == 1 else fits  # nowhere is room for it
        rooms[side] = max(rooms[side] // fits, 1)
        yield side, fits
        size //= fits
