"""Least seconds of reshards between all layouts of a value: shortest paths over single steps.

A reshard is a sequence of steps, so none is cheaper than the cheapest sequence of the cheapest
steps. Axes along one dimension have no order: layouts that differ only in it are one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from partita.cost import CostModel
from partita.mesh import Mesh
from partita.program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    REDUCE_SCATTER,
    SLICE,
    CollectiveKind,
)
from partita.program.ir import TensorType
from partita.spmd import cheapest_reshard
from partita.tiling import Axes, Layout

Unreduced = frozenset[int]
"""Axes over which a value is unreduced."""

Place = tuple[Layout, Unreduced]
"""A layout, and the axes over which the value is unreduced."""

MOST_PLACES = 600
"""Most places of one value; with more, there is no relaxed problem."""

_Move = tuple[CollectiveKind, Axes, int, int, Place]
"""Kind of step, axes, dimension, the one that all_to_all splits or -1, and the place after."""


class TooLargeError(Exception):
    """Raised if there are too many layouts to look at all of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ways:
    """Least seconds from place to place, of one value."""

    number: dict[Place, int]
    seconds: np.ndarray
    """Least seconds, of shape (2, 2, places, places).

    The indices are: sums not combined or combined; all waited for or hidden where possible; start;
    end.
    """

    def between(
        self, starts: Sequence[Place], ends: Sequence[Place], combined: float = 1.0
    ) -> np.ndarray:
        """Returns the least seconds from each start to each end: all waited for, then hidden.

        It is 0 to or from places that do not divide, as windows need them.

        Args:
          starts: the places to start from.
          ends: the places to get to.
          combined: the share of the latency of sums that combining may save. Seconds of steps are
            linear in it, so the least of all paths are concave.
        """
        rows, columns = self._numbers(starts)[:, None], self._numbers(ends)[None, :]
        block = self.seconds[:, :, rows.clip(0), columns.clip(0)]
        found = (1 - combined) * block[0] + combined * block[1]
        return np.where((rows >= 0) & (columns >= 0), found, 0.0)

    def _numbers(self, places: Sequence[Place]) -> np.ndarray:
        """Returns the numbers of places; -1 for those that do not divide."""
        return np.array([self.number.get(place, -1) for place in places], dtype=np.int64)


class Shortest:
    """Shortest paths of values over a mesh, memoised by type."""

    def __init__(self, model: CostModel, mesh: Mesh, axes: Sequence[int]) -> None:
        self._model = model
        self._mesh = mesh
        self._axes = tuple(axes)
        self._known: dict[tuple[TensorType, str], Ways] = {}
        self._steps: dict[tuple[object, ...], np.ndarray] = {}

    def ways(self, type_: TensorType, combine: str) -> Ways:
        """Returns the shortest paths of values of a type, whose partial results are combined so.

        Raises:
          TooLargeError: there are too many layouts.
        """
        key = type_, combine
        if key not in self._known:
            self._known[key] = self._worked_out(type_, combine)
        return self._known[key]

    def _worked_out(self, type_: TensorType, combine: str) -> Ways:
        places = [
            (layout, over)
            for layout in layouts(type_.shape, self._axes, self._mesh)
            for over in subsets(set(self._axes) - {a for axes in layout for a in axes})
        ]
        if len(places) > MOST_PLACES:
            raise TooLargeError
        number = {place: n for n, place in enumerate(places)}
        seconds = np.full((2, 2, len(places), len(places)), np.inf)
        for start, place in enumerate(places):
            seconds[:, :, start, start] = 0.0
            for move in self._moves(type_, place):
                end = number[move[-1]]
                least = self._seconds(type_, place, move, combine)
                seconds[:, :, start, end] = np.minimum(seconds[:, :, start, end], least)
        _close(seconds)
        return Ways(number, seconds)

    def _seconds(self, type_: TensorType, place: Place, move: _Move, combine: str) -> np.ndarray:
        """Returns the least seconds of one step, by not combined or so, by waited for or hidden."""
        kind, axes, dim, split, (after, _) = move
        step = cheapest_reshard.step(
            type_, self._mesh, kind, axes, (dim, split), (place[0], after), combine
        )
        key = step.kind, axes, step.bytes, step.after.bytes, step.of_vector
        if key not in self._steps:
            each = [self._model.least(step, combined) for combined in (False, True)]
            self._steps[key] = np.array(each)
        return self._steps[key]

    def _moves(self, type_: TensorType, place: Place) -> Iterator[_Move]:
        """Yields every step from a place."""
        layout, unreduced = place
        used = {axis for axes in layout for axis in axes}

        def grown(into: Layout, dim: int, axes: Iterable[int]) -> Layout | None:
            new = tuple(sorted((*into[dim], *axes)))
            fits = type_.shape[dim] % self._mesh.size(new) == 0
            return (*into[:dim], new, *into[dim + 1 :]) if fits else None

        for dim, axes in enumerate(layout):
            for kind, free in (
                (SLICE, {*self._axes} - used - unreduced),
                (REDUCE_SCATTER, unreduced),
            ):
                for run in subsets(free):
                    if run and (more := grown(layout, dim, run)):
                        yield kind, tuple(sorted(run)), dim, -1, (more, unreduced - run)
            for run in subsets(axes):
                if not run:
                    continue
                left = tuple(axis for axis in axes if axis not in run)
                rest, moved = (*layout[:dim], left, *layout[dim + 1 :]), tuple(sorted(run))
                yield ALL_GATHER, moved, dim, -1, (rest, unreduced)
                for other in range(len(layout)):
                    if other != dim and (more := grown(rest, other, run)):
                        yield ALL_TO_ALL, moved, dim, other, (more, unreduced)
        for run in subsets(unreduced):
            if run:
                yield ALL_REDUCE, tuple(sorted(run)), -1, -1, (layout, unreduced - run)
        yield from self._permuted(type_, place)

    def _permuted(self, type_: TensorType, place: Place) -> Iterator[_Move]:
        """Yields the steps that permute shards unchanged."""
        layout, unreduced = place
        sizes = [self._mesh.size(axes) for axes in layout]
        for new in layouts(
            type_.shape, tuple(a for a in self._axes if a not in unreduced), self._mesh
        ):
            if new != layout and [self._mesh.size(axes) for axes in new] == sizes:
                changed = {a for x, y in zip(layout, new, strict=True) if x != y for a in (*x, *y)}
                yield COLLECTIVE_PERMUTE, tuple(sorted(changed)), -1, -1, (new, unreduced)


def _close(seconds: np.ndarray) -> None:
    """Replaces seconds of single steps by those of shortest paths (Floyd and Warshall)."""
    for middle in range(seconds.shape[-1]):
        through = seconds[..., :, middle, None] + seconds[..., None, middle, :]
        np.minimum(seconds, through, out=seconds)


@functools.lru_cache(maxsize=4096)
def layouts(shape: tuple[int, ...], axes: Axes, mesh: Mesh) -> tuple[Layout, ...]:
    """Returns every layout over some of these axes that divides a shape, with axes in order.

    Raises:
      TooLargeError: there are too many.
    """
    if (len(shape) + 1) ** len(axes) > MOST_PLACES:
        raise TooLargeError
    found = []
    for places in itertools.product((None, *range(len(shape))), repeat=len(axes)):
        layout = tuple(
            tuple(a for a, at in zip(axes, places, strict=True) if at == dim)
            for dim in range(len(shape))
        )
        if all(size % mesh.size(along) == 0 for size, along in zip(shape, layout, strict=True)):
            found.append(layout)
    return tuple(found)


def subsets(axes: Iterable[int]) -> list[Unreduced]:
    """Returns all subsets."""
    axes = sorted(axes)
    return [
        frozenset(chosen)
        for count in range(len(axes) + 1)
        for chosen in itertools.combinations(axes, count)
    ]


@functools.cache
def in_order(layout: Layout) -> Layout:
    """Returns the layout with the axes along each dimension in order."""
    return tuple(tuple(sorted(axes)) for axes in layout)
