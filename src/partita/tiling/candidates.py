"""The nodes of a color group that may take an axis, prepared for many tilings.

A search takes a color many times, and what stands in the way is the same again and again. So where
an axis gets to is worked out once for the same obstacles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from partita.mesh import Mesh
from partita.tiling.tiling import Layout, Tiling

Places = tuple[dict[int, int], dict[int, int]]
"""By operation class a factor, and by value class a dimension: the first that is reached. Shared:
not to be changed."""


class Room(dict[Layout, bool]):
    """Which layouts have room for an axis at a place, where it divides the size; found as asked."""

    def __init__(self, mesh: Mesh, axis: int, place: int, size: int, least: int) -> None:
        """Takes the place, its size, and the fewest indices that a shard may have."""
        super().__init__()
        self._mesh, self._axis, self._place = mesh, axis, place
        self._size, self._least = size, least

    def __missing__(self, layout: Layout) -> bool:
        found = self[layout] = self._has_room(layout)
        return found

    def _has_room(self, layout: Layout) -> bool:
        if any(self._axis in axes for axes in layout):
            return False
        here = layout[self._place]
        shards = self._mesh.size(here) * self._mesh.sizes[self._axis]
        return not here or (self._size % shards == 0 and self._size // shards >= self._least)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A node whose size an axis divides and whose role, if any, gets it."""

    index: int
    """Of the operation or value class."""
    place: int
    """The factor or dimension."""
    room: Room


class Candidates:
    """The candidates of one color group for one axis, numbered, operations first."""

    def __init__(
        self,
        ops: Sequence[Candidate],
        values: Sequence[Candidate],
        seeds: Sequence[int],
        neighbours: Mapping[int, Sequence[int]],
        axis: int,
    ) -> None:
        """Takes them.

        Args:
          ops: those on operations.
          values: those on values.
          seeds: the numbers of operations and arguments.
          neighbours: for each number the values joined to it; operations need not be reached, all
            are seeds.
          axis: the axis.
        """
        self._sides = ops, values
        self._seeds = seeds
        self._neighbours = neighbours
        self._axis = axis
        self._picks = [_getter([c.index for c in side]) for side in self._sides]
        self._rooms = [[c.room for c in side] for side in self._sides]
        self._known: dict[bytes, Places] = {}

    def reached(self, tiling: Tiling) -> Places:
        """Where the axis gets to in a tiling."""
        layouts = self._picks[0](tiling.ops), self._picks[1](tiling.values)
        can = [room[layout] for room, layout in zip(self._rooms[0], layouts[0], strict=True)]
        can += [room[layout] for room, layout in zip(self._rooms[1], layouts[1], strict=True)]
        if tiling.pinned:
            for number, value in enumerate(self._sides[1], len(self._sides[0])):
                can[number] = can[number] and (value.index, self._axis) not in tiling.pinned
        key = bytes(can)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._spread(can)
        return found

    def _spread(self, can: Sequence[bool]) -> Places:
        """The candidates that are reached, given which can take the axis."""
        ops: dict[int, int] = {}
        values: dict[int, int] = {}
        first = len(self._sides[0])
        for number in sorted(reached(self._seeds, can.__getitem__, self._neighbours)):
            if number < first:
                each = self._sides[0][number]
                ops.setdefault(each.index, each.place)
            else:
                each = self._sides[1][number - first]
                values.setdefault(each.index, each.place)
        return ops, values


def _getter(indices: Sequence[int]) -> Callable[[Sequence[Layout]], Sequence[Layout]]:
    """Picks these items of a sequence."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda layouts: [layouts[index] for index in indices]


N = TypeVar("N", tuple[str, int, int], int)


def reached(
    seeds: Iterable[N], can_take: Callable[[N], bool], neighbours: Mapping[N, Sequence[N]]
) -> set[N]:
    """The seeds, and from there on their neighbours, as long as those can take the axis."""
    found: set[N] = set()
    queue = list(seeds)
    while queue:
        node = queue.pop()
        if node not in found and can_take(node):
            found.add(node)
            queue += neighbours[node]
    return found
