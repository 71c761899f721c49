"""The state of a partitioning: which axes tile which factor and which dimension.

A `Tiling` belongs to a `ClassGraph`. Actions applied in order lead from one to the next; a tiling
is never changed in place. `assignment` unfolds it to single operations and values, and
`refold` carries it over to classes that tell apart what it treats differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partita.analysis import Analysis, ClassGraph, fold
from partita.program import Program

Axes = tuple[int, ...]
"""Mesh axes (by position) that split one dimension, major first."""

Layout = tuple[Axes, ...]
"""The axes of every dimension of a value, or of every factor of an operation."""

Pinned = frozenset[tuple[int, int]]
"""`(value class, axis)` pairs: values that must not be tiled along that axis."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The layout of every operation class, by factors, and of every value class, by dimensions."""

    ops: tuple[Layout, ...]
    values: tuple[Layout, ...]
    pinned: Pinned = frozenset()

    def changed(self, ops: Mapping[int, Layout], values: Mapping[int, Layout]) -> Tiling:
        """The same with other layouts of some operation and value classes."""
        rows = list(self.ops), list(self.values)
        for row, layouts in zip(rows, (ops, values), strict=True):
            for index, layout in layouts.items():
                row[index] = layout
        return Tiling(tuple(rows[0]), tuple(rows[1]), self.pinned)


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A tiling unfolded: the layout of every operation and every value of the program."""

    ops: tuple[Layout, ...]
    values: tuple[Layout, ...]
    pinned: frozenset[tuple[int, int]] = frozenset()


def untiled(graph: ClassGraph) -> Tiling:
    """The tiling that splits nothing."""
    return Tiling(
        tuple(((),) * len(op.op.rule.factors) for op in graph.ops),
        tuple(((),) * len(value.value.type.shape) for value in graph.values),
    )


def replicated(program: Program) -> Assignment:
    """The assignment that splits nothing."""
    return Assignment(
        tuple(((),) * len(op.rule.factors) for op in program.operations),
        tuple(((),) * len(value.type.shape) for value in program.values),
    )


def assignment(graph: ClassGraph, tiling: Tiling) -> Assignment:
    """The layout of every single operation and value."""
    return Assignment(
        tuple(tiling.ops[c] for c in graph.op_class),
        tuple(tiling.values[c] for c in graph.value_class),
        frozenset((m, axis) for c, axis in tiling.pinned for m in graph.values[c].members),
    )


def refold(analysis: Analysis, assigned: Assignment) -> tuple[ClassGraph, Tiling]:
    """Classes that agree with an assignment, and the assignment as a tiling of them."""
    pinned: dict[int, list[int]] = {}
    for value, axis in sorted(assigned.pinned):
        pinned.setdefault(value, []).append(axis)
    graph = fold(
        analysis,
        lambda op: assigned.ops[op],
        lambda v: (assigned.values[v], tuple(pinned.get(v, ()))),
    )
    return graph, Tiling(
        tuple(assigned.ops[c.op.index] for c in graph.ops),
        tuple(assigned.values[c.value.index] for c in graph.values),
        frozenset((c.index, axis) for c in graph.values for axis in pinned.get(c.value.index, ())),
    )


def uses_axis(layout: Sequence[Axes], axis: int) -> bool:
    """Whether any dimension is split along the axis."""
    return any(axis in axes for axes in layout)
