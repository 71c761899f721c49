"""The nodes of a color group that may take an axis, prepared for many tilings.

A search propagates a color many times, and mostly the same nodes cannot take the axis. So the nodes
that an axis reaches are memoised by the candidates that can take it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from partita.mesh import Mesh
from partita.sparse import Rows
from partita.tiling.tiling import LAYOUTS, Tiling


class Places:
    """The factor of each operation class, and the dimension of each value class; immutable."""

    def __init__(self, ops: dict[int, int], values: dict[int, int], count: int) -> None:
        """Takes factors and dimensions by class, and the number of all operation classes."""
        self.ops, self.values = ops, values
        self.row = np.array([*ops, *(count + index for index in values)], dtype=np.int64)
        """The classes by their places in the row of a tiling."""
        self.place = np.array([*ops.values(), *values.values()], dtype=np.int64)
        """Factor or dimension of each class in `row`."""


class Rooms:
    """Memoised test of whether a layout has room for an axis at a place of some size."""

    def __init__(self, mesh: Mesh, axis: int) -> None:
        self._mesh, self._axis = mesh, axis
        self._rooms: dict[tuple[int, int, int], int] = {}
        self._sizes: list[tuple[int, int, int]] = []
        self._known = np.zeros((0, 0), dtype=np.int8)
        """1 if there is room, 0 if not, -1 if not known yet, by number of room and of layout."""

    def number(self, place: int, size: int, least: int) -> int:
        """Returns the number of a place, its size, which the axis divides, and the fewest indices
        that a shard may have."""
        room = place, size, least
        if room not in self._rooms:
            self._rooms[room] = len(self._sizes)
            self._sizes.append(room)
        return self._rooms[room]

    def at(self, rooms: np.ndarray, layouts: np.ndarray) -> np.ndarray:
        """Returns 1 where a place has room for the axis in a layout, 0 elsewhere.

        Places and layouts are given by number, as arrays of equal length.
        """
        missing = len(self._rooms) - len(self._known), len(LAYOUTS.all) - self._known.shape[1]
        if max(missing) > 0:
            grown = [(0, max(0, 2 * more)) for more in missing]
            self._known = np.pad(self._known, grown, constant_values=-1)
        found: np.ndarray = self._known[rooms, layouts]
        for number in np.flatnonzero(found < 0).tolist():
            room, layout = int(rooms[number]), int(layouts[number])
            found[number] = self._known[room, layout] = self._has_room(room, layout)
        return found

    def _has_room(self, room: int, number: int) -> bool:
        (place, size, least), layout = self._sizes[room], LAYOUTS.all[number]
        if any(self._axis in axes for axes in layout):
            return False
        here = layout[place]
        shards = self._mesh.size(here) * self._mesh.sizes[self._axis]
        return not here or (size % shards == 0 and size // shards >= least)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A node whose size an axis divides and whose role, if any, gets it."""

    index: int
    """Number of the operation or value class."""
    place: int
    """The factor or dimension."""
    room: int
    """The number of its place and size among `Rooms`."""


class Candidates:
    """The candidates of one color group for one axis, numbered, operations first."""

    def __init__(
        self,
        ops: Sequence[Candidate],
        values: Sequence[Candidate],
        seeds: Sequence[int],
        neighbours: Sequence[Sequence[int]],
        axis: int,
        rooms: Rooms,
        count: int,
    ) -> None:
        """Takes the candidates.

        Args:
          ops: candidates on operations.
          values: candidates on values.
          seeds: the numbers from which the axis propagates by default.
          neighbours: for each number, those to which it may propagate.
          axis: the axis.
          rooms: the test of whether there is room for it.
          count: the number of all operation classes.
        """
        self._sides = ops, values
        self._seeds = np.array(seeds, dtype=np.int64)
        ends = np.array([*itertools.chain.from_iterable(neighbours)], dtype=np.int64)
        starts = [0, *itertools.accumulate(map(len, neighbours))]
        self._joined = Rows(starts, ends, np.ones(len(ends)))
        """Sparse matrix of neighbours: the candidates to which the axis may propagate."""
        self._axis = axis
        self._rooms = rooms
        self._count = count
        indices = [each.index for each in ops], [count + each.index for each in values]
        self._index = np.array([*indices[0], *indices[1]], dtype=np.int64)
        self._room = np.array([each.room for each in (*ops, *values)], dtype=np.int64)
        self._known: dict[bytes, Places] = {}

    def reached(self, tiling: Tiling) -> Places:
        """Returns the places that the axis reaches in a tiling from the default seeds."""
        can = self._can(tiling)
        key = can.tobytes()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._spread(can, self._seeds)
        return found

    def reached_from(self, seeds: Sequence[int], tiling: Tiling) -> Places:
        """Returns the places that the axis reaches from some candidates, given by number."""
        return self._spread(self._can(tiling), np.array(seeds, dtype=np.int64))

    def _can(self, tiling: Tiling) -> np.ndarray:
        """Returns for each candidate whether it can take the axis."""
        can: np.ndarray = self._rooms.at(self._room, tiling.row[self._index]) != 0
        if pinned := [value for value, axis in tiling.pinned if axis == self._axis]:
            first = len(self._sides[0])
            can[first:] &= ~np.isin(self._index[first:] - self._count, pinned)
        return can

    def _spread(self, can: np.ndarray, seeds: np.ndarray) -> Places:
        """Returns the candidates reached from some, given which can take the axis."""
        ops: dict[int, int] = {}
        values: dict[int, int] = {}
        first = len(self._sides[0])
        for number in self._joined.reached(can, seeds).nonzero()[0].tolist():
            if number < first:
                each = self._sides[0][number]
                ops.setdefault(each.index, each.place)
            else:
                each = self._sides[1][number - first]
                values.setdefault(each.index, each.place)
        return Places(ops, values, self._count)


N = TypeVar("N", tuple[str, int, int], int)


def reached(
    seeds: Iterable[N], can_take: Callable[[N], bool | int], neighbours: Mapping[N, Sequence[N]]
) -> set[N]:
    """Returns the seeds that can take the axis, and all nodes reached through others that can."""
    found: set[N] = set()
    queue = list(seeds)
    while queue:
        node = queue.pop()
        if node not in found and can_take(node):
            found.add(node)
            queue += neighbours[node]
    return found
