"""Forms: the layouts that an operation reads and makes, given the axes of its factors."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from partita.analysis import ClassGraph, OpClass
from partita.mesh import Axes, Layout, Mesh
from partita.program.ir import TensorType
from partita.program.rule import Halo, Rule
from partita.tiling.tiling import LAYOUTS

Need = tuple[Layout, Halo]
"""Layout in which a use needs a value, and the halo that it reads of neighbouring shards."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpForm:
    """Form of an operation on each device, under a layout of its factors.

    There is one object for each class and layout, so forms are compared by identity.
    """

    needs: tuple[Layout, ...]
    """Layout of every operand."""
    halos: tuple[Halo, ...]
    """Halo of every operand: the windows that reach into neighbouring shards."""
    makes: tuple[Layout, ...]
    """Layout of every result."""
    sums: frozenset[int]
    """Axes over which results are unreduced."""
    axes: frozenset[int]
    """All axes that the operation works along."""
    layout: Layout
    """The layout of its factors."""
    op: int = -1
    """Operation class of a form that `Forms` has made; then `number`, its place among these."""
    number: int = -1

    def need(self, number: int) -> Need:
        """Returns the layout and halo in which the operand of this number is needed."""
        return self.needs[number], self.halos[number]


class Forms:
    """The forms of the operation classes of one graph, each made once."""

    def __init__(self, graph: ClassGraph) -> None:
        self._graph = graph
        self.all: list[OpForm] = []
        """All forms made so far, by number."""
        self._numbers = _Numbers(self)
        self._known: list[dict[Layout, OpForm]] = [{} for _ in graph.ops]
        by_rule: dict[Rule, dict[Layout, OpForm]] = {}
        self._alike = [by_rule.setdefault(op.op.rule, {}) for op in graph.ops]
        """Forms by layout, for each class; classes with the same rule share them."""

    def of(self, op: OpClass, layout: Layout) -> OpForm:
        """Returns the form of an operation class under a layout of its factors."""
        known = self._known[op.index]
        form = known.get(layout)
        if form is None:
            alike = self._alike[op.index].get(layout)
            if alike is None:
                alike = self._alike[op.index][layout] = form_of(op.op.rule, layout)
            needs, halos, makes, sums = alike.needs, alike.halos, alike.makes, alike.sums
            number = len(self.all)
            form = OpForm(needs, halos, makes, sums, alike.axes, layout, op.index, number)
            self.all.append(form)
            known[layout] = form
        return form

    def numbers(self, ops: np.ndarray, layouts: np.ndarray) -> list[int]:
        """Returns the numbers of the forms of operation classes, given those of their layouts."""
        keys = ops.astype(np.int64) << 32 | layouts
        return list(map(self._numbers.__getitem__, keys.tolist()))

    def made(self, key: int) -> int:
        """Returns the number of a form, by a key of 64 bits: operation class, then layout."""
        return self.of(self._graph.ops[key >> 32], LAYOUTS.all[key & 0xFFFFFFFF]).number


class _Numbers(dict[int, int]):
    """Cache: key of operation class and layout, see `Forms.made` -> number of the form."""

    def __init__(self, forms: Forms) -> None:
        super().__init__()
        self._forms = forms

    def __missing__(self, key: int) -> int:
        number = self[key] = self._forms.made(key)
        return number


def form_of(rule: Rule, layout: Layout) -> OpForm:
    """Returns the form of an operation with this rule, under a layout of its factors."""

    def side(tensors: tuple[tuple[tuple[int, ...], ...], ...]) -> tuple[Layout, ...]:
        def axes(dimension: tuple[int, ...]) -> Axes:
            return tuple(axis for factor in rule.carriers(dimension) for axis in layout[factor])

        return tuple(tuple(axes(dim) for dim in tensor) for tensor in tensors)

    sums = frozenset(
        a
        for factor, axes in zip(rule.factors, layout, strict=True)
        if factor.kind == "reduction"
        for a in axes
    )
    used = frozenset(a for axes in layout for a in axes)
    needs = side(rule.operands)
    halos = tuple(
        tuple(
            reach if axes else None
            for reach, axes in zip(halo or (None,) * len(need), need, strict=True)
        )
        for halo, need in zip(rule.halos or ((),) * len(needs), needs, strict=True)
    )
    halos = tuple(halo if any(halo) else () for halo in halos)
    return OpForm(needs, halos, side(rule.results), sums, used, layout)


def layout_from_result(op: OpClass, wanted: Layout | None) -> Layout:
    """Returns the factor layout under which an elementwise operation makes this result layout."""
    rule = op.op.rule
    layout: list[Axes] = [()] * len(rule.factors)
    if wanted is not None:
        for dimension, axes in zip(rule.results[0], wanted, strict=True):
            factor = rule.leading(dimension)
            if factor is not None:
                layout[factor] = axes
    return tuple(layout)


def read_type(type_: TensorType, layout: Layout, halo: Halo, mesh: Mesh) -> TensorType:
    """Returns the type of what one device reads of a value: its shard, or a window."""
    shape = list(local_type(type_, layout, mesh).shape)
    for dim, reach in enumerate(halo):
        if reach is not None:
            shape[dim] = reach.length(mesh.size(layout[dim]))
    return TensorType(tuple(shape), type_.dtype)


@functools.cache
def local_type(type_: TensorType, layout: Layout, mesh: Mesh) -> TensorType:
    """Returns the type of one device's shard; every dimension divides by construction."""
    shape = tuple(size // mesh.size(axes) for size, axes in zip(type_.shape, layout, strict=True))
    return TensorType(shape, type_.dtype)
