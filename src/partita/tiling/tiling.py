"""The state of a partitioning: which axes tile which factor and which dimension.

A `Tiling` belongs to a `ClassGraph`. Actions applied in order lead from one to the next; a tiling
is never changed in place. `assignment` unfolds it to single operations and values, and
`refold` carries it over to classes that tell apart what it treats differently.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from partita.analysis import Analysis, ClassGraph, fold
from partita.mesh import Axes, Layout
from partita.program import Program

Pinned = frozenset[tuple[int, int]]
"""`(value class, axis)` pairs: values that must not be tiled along that axis."""

Gathers = frozenset[tuple[int, int]]
"""`(value class, Between)` pairs: between which uses of a value its gathered copy is dropped, to be
gathered again."""


class Layouts(dict[Layout, int]):
    """Numbering of layouts: layout -> number, in order of first occurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Layout] = []
        self._splits: dict[int, np.ndarray] = {}
        """Cache: axis -> matrix from layout and place to the layout once it splits that; or -1."""
        self._lock = threading.Lock()

    def __missing__(self, layout: Layout) -> int:
        with self._lock:
            number = self.get(layout)
            if number is None:
                number = len(self.all)
                self.all.append(layout)
                self[layout] = number
        return number

    def split(self, layouts: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
        """Returns the layouts after an axis splits these places, inside of those that do already.

        All layouts are given by number.
        """
        most = len(self.all), int(places.max(initial=0)) + 1
        known = self._splits.setdefault(axis, np.zeros((0, 0), dtype=np.int32))
        if known.shape[0] < most[0] or known.shape[1] < most[1]:
            sizes = zip(most, known.shape, strict=True)
            more = [(0, max(0, 2 * (size - before))) for size, before in sizes]
            known = self._splits[axis] = np.pad(known, more, constant_values=-1)
        found: np.ndarray = known[layouts, places]
        for number in np.flatnonzero(found < 0).tolist():
            layout, place = self.all[layouts[number]], int(places[number])
            after = (*layout[:place], (*layout[place], axis), *layout[place + 1 :])
            found[number] = known[layouts[number], place] = self[after]
        return found


LAYOUTS = Layouts()
"""All layouts that have come up in this process, so that tilings are rows of numbers."""


class Tiling:
    """The layout of every operation class, by factors, and of every value class, by dimensions."""

    def __init__(
        self,
        ops: Sequence[Layout],
        values: Sequence[Layout],
        pinned: Pinned = frozenset(),
        gathers: Gathers = frozenset(),
    ) -> None:
        row = np.array([LAYOUTS[layout] for layout in (*ops, *values)], dtype=np.int32)
        self._set(row, len(ops), pinned, gathers)

    def _set(self, row: np.ndarray, count: int, pinned: Pinned, gathers: Gathers) -> Tiling:
        self.row = row
        """Layout numbers of every operation class, then of every value class."""
        self.count = count
        """Number of operation classes."""
        self.pinned = pinned
        self.gathers = gathers
        """What has been decided of value classes that are gathered."""
        return self

    @cached_property
    def ops(self) -> tuple[Layout, ...]:
        """The layout of every operation class."""
        return tuple(map(LAYOUTS.all.__getitem__, self.row[: self.count].tolist()))

    @cached_property
    def values(self) -> tuple[Layout, ...]:
        """The layout of every value class."""
        return tuple(map(LAYOUTS.all.__getitem__, self.row[self.count :].tolist()))

    def split(self, classes: np.ndarray, places: np.ndarray, axis: int) -> Tiling:
        """Returns the tiling after an axis splits one place each of some classes.

        Classes are given by their places in the row. The axis splits inside of those that do
        already.
        """
        if not len(classes):
            return self
        return self.with_rows(classes, LAYOUTS.split(self.row[classes], places, axis))

    def changed(self, ops: Mapping[int, Layout], values: Mapping[int, Layout]) -> Tiling:
        """Returns the tiling with other layouts of some operation and value classes."""
        places = [*ops, *(self.count + index for index in values)]
        layouts = map(LAYOUTS.__getitem__, (*ops.values(), *values.values()))
        return self.with_rows(places, list(layouts))

    def pinning(self, pinned: Pinned) -> Tiling:
        """Returns the tiling with these values pinned, and no others."""
        return Tiling.__new__(Tiling)._set(self.row, self.count, pinned, self.gathers)

    def with_rows(
        self, places: Sequence[int] | np.ndarray, layouts: Sequence[int] | np.ndarray
    ) -> Tiling:
        """Returns the tiling with the layouts of these numbers at these places of the row."""
        row = self.row.copy()
        row[places] = layouts
        return self.with_row(row)

    def with_row(self, row: np.ndarray) -> Tiling:
        """Returns the tiling with other layouts, given by number."""
        return Tiling.__new__(Tiling)._set(row, self.count, self.pinned, self.gathers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tiling):
            return NotImplemented
        mine = self.count, self.pinned, self.gathers
        same = mine == (other.count, other.pinned, other.gathers)
        return same and np.array_equal(self.row, other.row)

    def __hash__(self) -> int:
        return hash((self.row.tobytes(), self.count, self.pinned, self.gathers))

    def __reduce__(self) -> tuple[object, ...]:
        # Numbers differ between processes.
        return Tiling, (self.ops, self.values, self.pinned, self.gathers)

    def __repr__(self) -> str:
        return f"Tiling(ops={self.ops}, values={self.values}, pinned={self.pinned})"


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A tiling unfolded: the layout of every operation and every value of the program."""

    ops: tuple[Layout, ...]
    values: tuple[Layout, ...]
    pinned: Pinned = frozenset()
    gathers: Gathers = frozenset()
    """What has been decided of values that are gathered; for others the cost model chooses."""

    @classmethod
    def of(cls, tiling: Tiling) -> Assignment:
        """Returns the assignment of a tiling of single operations and values."""
        return cls(tiling.ops, tiling.values, tiling.pinned, tiling.gathers)

    @property
    def tiling(self) -> Tiling:
        """Tiling of single operations and values."""
        return Tiling(self.ops, self.values, self.pinned, self.gathers)


def untiled(graph: ClassGraph) -> Tiling:
    """Returns the tiling that splits nothing."""
    return Tiling(
        tuple(((),) * len(op.op.rule.factors) for op in graph.ops),
        tuple(((),) * len(value.value.type.shape) for value in graph.values),
    )


def replicated(program: Program) -> Assignment:
    """Returns the assignment that splits nothing."""
    return Assignment(
        tuple(((),) * len(op.rule.factors) for op in program.operations),
        tuple(((),) * len(value.type.shape) for value in program.values),
    )


def assignment(graph: ClassGraph, tiling: Tiling) -> Assignment:
    """Returns the layout of every single operation and value."""
    return Assignment(
        tuple(tiling.ops[c] for c in graph.op_class),
        tuple(tiling.values[c] for c in graph.value_class),
        _of_members(graph, tiling.pinned),
        _of_members(graph, tiling.gathers),
    )


def _of_members(graph: ClassGraph, pairs: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    return frozenset((m, what) for c, what in pairs for m in graph.values[c].members)


def refold(analysis: Analysis, assigned: Assignment) -> tuple[ClassGraph, Tiling]:
    """Returns classes that agree with an assignment, and the assignment as a tiling of them."""
    pinned, gathers = _by_value(assigned.pinned), _by_value(assigned.gathers)
    graph = fold(
        analysis,
        lambda op: assigned.ops[op],
        lambda v: (assigned.values[v], pinned.get(v), gathers.get(v)),
    )

    def of_classes(pairs: Mapping[int, Sequence[int]]) -> frozenset[tuple[int, int]]:
        return frozenset((c.index, n) for c in graph.values for n in pairs.get(c.value.index, ()))

    return graph, Tiling(
        tuple(assigned.ops[c.op.index] for c in graph.ops),
        tuple(assigned.values[c.value.index] for c in graph.values),
        of_classes(pinned),
        of_classes(gathers),
    )


def _by_value(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for value, number in sorted(pairs):
        found[value] = (*found.get(value, ()), number)
    return found


def uses_axis(layout: Sequence[Axes], axis: int) -> bool:
    """Returns whether any dimension is split along the axis."""
    return any(axis in axes for axes in layout)
