"""Choices of the relaxed problem: for every class, the layouts that moves may give it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from partita.analysis import OpClass, ValueClass
from partita.program.op_traits import CARRY
from partita.search.bounds.shortest import TooLargeError, Unreduced, in_order, subsets
from partita.search.problem import Problem
from partita.spmd.carried import CarriedSums
from partita.tiling import Forms, Layout, Node, OpForm

MOST_CHOICES = 1000
"""Most layouts of one operation or value; with more, there is no relaxed problem."""

NONE: Unreduced = frozenset()
"""Not unreduced."""


@dataclasses.dataclass(frozen=True, eq=False)
class OpNode:
    """Choices of an operation class: its form, and the axes over which operands are unreduced."""

    layouts: tuple[Layout, ...]
    forms: tuple[OpForm, ...]
    passed: tuple[Unreduced, ...]
    """Axes over which operands, and so the result, are unreduced, by choice."""
    seconds: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class ValueNode:
    """Choices of a value class: its layout, and the axes over which it is stored unreduced."""

    layouts: tuple[Layout, ...]
    kept: tuple[Unreduced, ...]


class Choices:
    """Choices of every class of a problem, with the axes along each dimension in order.

    They contain all layouts that any moves lead to, alone and with parts of them left out. They
    also contain those that lowering makes of them: where operations give way to unreduced sums,
    where values are constant-like, and where a reshard goes straight to the need. There are more.
    """

    def __init__(self, problem: Problem) -> None:
        """Finds the choices.

        Raises:
          TooLargeError: a class has too many.
        """
        self.graph, self.mesh, self.model = problem.graph, problem.mesh, problem.cost_model
        self._forms = Forms(self.graph)
        self._carried = CarriedSums(self.graph)
        self._propagator = problem.propagator
        self._found: dict[tuple[object, ...], list[Layout]] = {}
        """Cache: options, sizes and start layout of a class -> its layouts that divide."""
        self._movable = {(move.color, move.axis) for move in problem.moves}
        self._anywhere = frozenset(problem.axes if problem.everything else ())
        """Axes that single classes may have wherever they divide, or not at all."""
        self._start = problem.start.tiling
        layouts = itertools.chain(self._start.ops, self._start.values)
        given = {axis for layout in layouts for axes in layout for axis in axes}
        self.axes = sorted({axis for _, axis in self._movable} | given)
        """The axes that may split anything."""
        self.sums = self._maybe_unreduced()
        """Axes over which each value class may be made, or masked to be, unreduced."""
        self.ops = [self._op(op) for op in self.graph.ops]
        self.values = [self._value(value) for value in self.graph.values]

    def _op(self, op: OpClass) -> OpNode:
        layouts, forms, passed, seconds = [], [], [], []
        offered = self._offered(op) if op.op.kind != CARRY else NONE
        for layout in self._op_layouts(op):
            form = self._forms.of(op, layout)
            time = self.model.compute.seconds(op, form)
            for over in subsets(offered - form.axes):
                layouts.append(layout)
                forms.append(form)
                passed.append(over)
                seconds.append(time)
        return OpNode(tuple(layouts), tuple(forms), tuple(passed), np.array(seconds))

    def _op_layouts(self, op: OpClass) -> list[Layout]:
        """Returns the layouts of an operation class that moves or lowering may lead to.

        Lowering makes operations give way to unreduced sums, and fits constant-like ones to uses.
        """
        start = self._start.ops[op.index]
        traits = op.op.traits
        given = [self._given(("op", op.index, factor)) for factor in range(len(start))]
        choices = []
        for axis in self.axes:
            held = tuple(f for f, axes in enumerate(start) if axis in axes)
            # A constant-like operation takes any axis that its uses need.
            can = range(len(start)) if traits.free else self._places(op.colors, axis)
            stays = not (traits.free or traits.additive or traits.transposes)
            choices.append(self._options(axis, held, can, stays, given))
        sizes = [factor.size for factor in op.op.rule.factors]
        return self._layouts(choices, sizes, start)

    def _places(self, colors: Sequence[int], axis: int) -> list[int]:
        """Returns the places that moves may split by an axis, given the colors of all places."""
        return [
            place
            for place, color in enumerate(colors)
            if color >= 0 and (axis in self._anywhere or (color, axis) in self._movable)
        ]

    def _options(
        self,
        axis: int,
        held: tuple[int, ...],
        can: Sequence[int],
        stays: bool,
        given: Sequence[bool],
    ) -> list[tuple[int, ...]]:
        """Returns the alternatives for an axis, each as the places that it splits.

        It splits several places only if it does so at the start.

        Args:
          axis: the axis.
          held: the places that it splits at the start.
          can: the places that it may get to.
          stays: whether it remains at `held`, unless single classes may change.
          given: whether the program fixes how each place is split.
        """
        if any(given[place] for place in held) or (held and stays and axis not in self._anywhere):
            return [held]
        return [*dict.fromkeys(((), held, *((place,) for place in can if not given[place])))]

    def _layouts(
        self, choices: Sequence[Sequence[tuple[int, ...]]], sizes: Sequence[int], start: Layout
    ) -> list[Layout]:
        """Returns every layout with a choice of places for each axis that divides the sizes."""
        key = tuple(map(tuple, choices)), tuple(sizes), start
        if key not in self._found:
            self._found[key] = self._dividing(choices, sizes, start)
        return self._found[key]

    def _dividing(
        self, choices: Sequence[Sequence[tuple[int, ...]]], sizes: Sequence[int], start: Layout
    ) -> list[Layout]:
        if math.prod(map(len, choices)) > MOST_CHOICES:
            raise TooLargeError
        found = []
        for places in itertools.product(*choices):
            layout = [
                tuple(a for a, at in zip(self.axes, places, strict=True) if place in at)
                for place in range(len(sizes))
            ]
            if all(
                size % self.mesh.size(axes) == 0 or axes == tuple(sorted(given))
                for size, axes, given in zip(sizes, layout, start, strict=True)
            ):
                found.append(tuple(layout))
        return found

    def _given(self, node: Node) -> bool:
        """Returns whether the program fixes how a factor or dimension is split."""
        return bool(self._propagator.given(node))

    def _value(self, value: ValueClass) -> ValueNode:
        start = self._start.values[value.index]
        given = [self._given(("value", value.index, dim)) for dim in range(len(start))]
        choices = []
        for axis in self.axes:
            held = tuple(d for d, axes in enumerate(start) if axis in axes)
            one = self.mesh.sizes[axis] == 1  # splits whatever has no color, too
            can = range(len(start)) if one else self._places(value.colors, axis)
            choices.append(self._options(axis, held, can, True, given))
        layouts = dict.fromkeys(self._layouts(choices, value.value.type.shape, start))
        made: dict[Layout, None] = {}
        if value.producer is not None:
            op, number = value.producer
            made = dict.fromkeys(in_order(form.makes[number]) for form in self.ops[op].forms)
            layouts.update(made)
            for use in value.uses:
                needs = (form.needs[use.number] for form in self.ops[use.op].forms)
                layouts.update(dict.fromkeys(map(in_order, needs)))
        rows = [(layout, NONE) for layout in layouts]
        if self.may_stay(value):
            for layout in made:
                used = {axis for axes in layout for axis in axes}
                free = self.sums[value.index] - used
                rows += [(layout, over) for over in subsets(free) if over]
        if len(rows) > MOST_CHOICES:
            raise TooLargeError
        return ValueNode(tuple(layout for layout, _ in rows), tuple(over for _, over in rows))

    def _maybe_unreduced(self) -> list[Unreduced]:
        """Returns the axes over which each value class may be made, or masked to be, unreduced."""
        every = frozenset(self.axes)
        found = [every if v.value.type.elements == 1 else NONE for v in self.graph.values]
        changed = True
        while changed:
            changed = False
            for op in self.graph.ops:
                own = self._offered(op, found)
                for color, factor in zip(op.colors, op.op.rule.factors, strict=True):
                    if factor.kind == "reduction":
                        own |= {a for a in every if self._places((color,), a)}
                for layout, factor in zip(
                    self._start.ops[op.index], op.op.rule.factors, strict=True
                ):
                    own |= set(layout) if factor.kind == "reduction" else NONE
                if op.op.kind == CARRY:
                    own = every
                for v in itertools.chain.from_iterable(op.results):
                    if not own <= found[v]:
                        found[v], changed = found[v] | own, True
        return found

    def _offered(self, op: OpClass, sums: Sequence[Unreduced] | None = None) -> Unreduced:
        """Returns the axes over which operands of an operation class may be stored unreduced."""
        sums = self.sums if sums is None else sums
        operands = itertools.chain.from_iterable(op.operands)
        stay = (v for v in operands if self.may_stay(self.graph.values[v]))
        return NONE.union(*(sums[v] for v in stay))

    def may_stay(self, value: ValueClass) -> bool:
        """Returns whether some plan may store a value unreduced."""
        if value.producer is None or value.is_result or len(value.uses) > 1:
            return False
        if not value.uses:
            return True  # nothing reads it: it is left as it is made
        use = value.uses[0]
        return self.graph.ops[use.op].op.kind == CARRY or self._carried.passes(use)
