"""Lowering: a tiling of classes -> for every value, how it is made, kept, and handed to its uses.

This one lowering is what the search prices, what the report shows and what `program` unfolds and
runs. A value is made in the layout of its operation, possibly *partial* (a sum over some axes is
outstanding); kept in the layout of the tiling; and needed by each use in that operation's layout.
The differences are reshards.

Partial values are passed on through linear operations as long as that saves something, and reduced
before: a use that is not linear, several uses, a use that would make them larger in bytes, and a
use that itself works along the axis. An addition of partial values is the exception to the last:
it gives way, adds the whole partial values, and one reduction follows instead of two. Decisions
are made for a class as a whole: a partial value is passed on only where every member can.

Values made from nothing (constants, iotas, what is computed from them alone) are made in whatever
layout their uses need, and never cost a collective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from partita.analysis import ClassGraph, OpClass, ValueClass
from partita.mesh import Mesh
from partita.program.rules import ELEMENTWISE
from partita.spmd.reshard import Step, reshard
from partita.tiling import Axes, Layout, Tiling

_NONE: frozenset[int] = frozenset()

_ADDITIVE = {"add", "subtract"}
_LINEAR_UNARY = {"negate", "reshape", "transpose", "convert", "reduce", "slice", "reverse"}
_SCALING = {"multiply": (0, 1), "divide": (0,)}
"""Operations linear in the operands of these numbers when the other is not partial."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpForm:
    """How an operation runs on each device under a layout of its factors."""

    needs: tuple[Layout, ...]
    """Layout of every operand."""
    makes: tuple[Layout, ...]
    """Layout of every result."""
    sums: frozenset[int]
    """Axes over which results are partial."""
    axes: frozenset[int]
    """All axes that the operation works along."""


@dataclasses.dataclass(frozen=True, slots=True)
class ValuePlan:
    """What happens to a value class between its definition and its uses."""

    layout: Layout
    """The layout it is kept in."""
    partial: frozenset[int]
    """Axes over which it is kept partial and handed on so."""
    steps: tuple[Step, ...]
    """From made to kept."""
    needs: tuple[Layout, ...]
    """Layout that each use needs."""
    moves: tuple[tuple[Layout, tuple[Step, ...]], ...]
    """For each different layout needed, the steps from kept to there (none if empty)."""


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A tiling, lowered. `forms` by operation class, `plans` by value class."""

    graph: ClassGraph
    mesh: Mesh
    tiling: Tiling
    asked: tuple[OpForm, ...]
    """How the tiling asks operations to run."""
    forms: tuple[OpForm, ...]
    """How they run: `asked`, but for additions that give way and what is made from nothing."""
    plans: tuple[ValuePlan, ...]
    partial: tuple[frozenset[int], ...]
    """For every value class, the axes over which it is made partial, passed-on ones included."""
    planned: tuple[int, ...]
    """The value classes that were planned anew, all others are those of the base."""


class Lowerer:
    """Lowers tilings of one class graph over one mesh, remembering what it has lowered."""

    def __init__(self, graph: ClassGraph, mesh: Mesh) -> None:
        self.graph = graph
        self.mesh = mesh
        self._forms: dict[tuple[int, Layout], OpForm] = {}
        self._plans: dict[object, ValuePlan] = {}
        self._passing = [v.index for v in graph.values if _may_pass(graph, v)]
        self._next = {v: graph.values[v].uses[0].op for v in self._passing}
        self._additions = _additions(graph, frozenset(self._passing))
        self._generated = _generated(graph)
        self._made_freely = frozenset(
            v for op in self._generated for classes in graph.ops[op].results for v in classes
        )
        self._adaptable = [*self._additions, *self._generated]
        downstream = set(self._passing)
        for v in self._passing:
            downstream.update(r for rs in graph.ops[self._next[v]].results for r in rs)
        self._chained = sorted(downstream, key=lambda v: graph.values[v].value.index)

    def lower(
        self, tiling: Tiling, base: Lowering | None = None, touched: Iterable[int] | None = None
    ) -> Lowering:
        """Lowers a tiling.

        Args:
          tiling: of this lowerer's graph.
          base: a lowering of another tiling of it, to start from.
          touched: the value classes whose own layout, or whose producer's or a consumer's,
            differs from `base`; all others are taken over.
        """
        graph = self.graph
        if base is None or touched is None:
            asked = [self.form(op, tiling.ops[op.index]) for op in graph.ops]
            touched = range(len(graph.values))
            plans: list[ValuePlan | None] = [None] * len(graph.values)
            old: Sequence[frozenset[int]] = [_NONE] * len(graph.values)
        else:
            asked, plans, old = list(base.asked), list(base.plans), base.partial
            for op in graph.ops:
                if tiling.ops[op.index] is not base.tiling.ops[op.index]:
                    asked[op.index] = self.form(op, tiling.ops[op.index])
        forms = list(asked)
        self._give_way(tiling, forms)
        self._generate(forms)
        made, kept = self._partials(forms)
        again = set(touched)
        if base is not None:
            again.update(
                v
                for v in self._chained
                if made[v] != old[v] or kept.get(v, _NONE) != base.plans[v].partial
            )
            for op in self._adaptable:
                if forms[op] is not base.forms[op]:
                    again.update(self._around(op))
        for index in again:
            plans[index] = self._plan(index, tiling, forms, made[index], kept.get(index, _NONE))
        return Lowering(
            graph,
            self.mesh,
            tiling,
            tuple(asked),
            tuple(forms),
            tuple(p for p in plans if p is not None),
            tuple(made),
            tuple(again),
        )

    def form(self, op: OpClass, layout: Layout) -> OpForm:
        """How an operation class runs under a layout of its factors."""
        key = (op.index, layout)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _form(op, layout)
        return form

    def _around(self, op: int) -> list[int]:
        """Value classes that an operation class reads or defines."""
        each = self.graph.ops[op]
        return [v for classes in (*each.operands, *each.results) for v in classes]

    def _give_way(self, tiling: Tiling, forms: list[OpForm]) -> None:
        """Lets additions whose operands all arrive partial over an axis not work along it."""
        passed: dict[int, frozenset[int]] = {}
        for index in self._additions:
            op = self.graph.ops[index]
            sources = [s for classes in op.operands for s in classes]
            arriving = [
                forms[producer[0]].sums | passed.get(s, _NONE)
                for s in sources
                if (producer := self.graph.values[s].producer) is not None
            ]
            common = frozenset.intersection(*arriving)
            if not common:
                continue
            form = forms[index]
            if common & form.axes:
                layout = tuple(
                    tuple(a for a in axes if a not in common) for axes in tiling.ops[index]
                )
                form = self.form(op, layout)
            if self._as_made(op, form, forms):
                forms[index] = form
                for classes in op.results:
                    passed.update((r, common) for r in classes)

    def _as_made(self, op: OpClass, form: OpForm, forms: Sequence[OpForm]) -> bool:
        """Whether every operand is made in just the layout that a form needs."""
        for need, classes in zip(form.needs, op.operands, strict=True):
            for source in classes:
                producer = self.graph.values[source].producer
                if producer is None or forms[producer[0]].makes[producer[1]] != need:
                    return False
        return True

    def _generate(self, forms: list[OpForm]) -> None:
        """Has values made from nothing in the layout that all of their uses need, or whole."""
        values = self.graph.values
        for index in self._generated:
            op = self.graph.ops[index]
            layouts = {
                forms[use.op].needs[use.number]
                for classes in op.results
                for v in classes
                for use in values[v].uses
            }
            wanted = layouts.pop() if len(layouts) == 1 else None
            forms[index] = self.form(op, _from_result(op, wanted))

    def _partials(
        self, forms: Sequence[OpForm]
    ) -> tuple[Sequence[frozenset[int]], dict[int, frozenset[int]]]:
        """Axes over which values are made partial, and those over which they are kept so."""
        values, ops = self.graph.values, self.graph.ops
        made: list[frozenset[int]] = [
            _NONE if v.producer is None else forms[v.producer[0]].sums for v in values
        ]
        own = {v: made[v] for v in self._chained}
        # Start from passing on all that may be (None: no limit yet), and take back until stable.
        limits: dict[int, frozenset[int] | None] = dict.fromkeys(self._passing)
        changed = True
        while changed:
            for v in self._chained:
                producer = values[v].producer
                if producer is not None:
                    made[v] = own[v] | self._passed(ops[producer[0]], made, limits)
            now = {v: self._accepted(v, forms, made, limits) for v in self._passing}
            changed = now != limits
            limits.update(now)
        return made, {v: limit for v, limit in limits.items() if limit}

    def _passed(
        self,
        op: OpClass,
        made: Sequence[frozenset[int]],
        limits: dict[int, frozenset[int] | None],
    ) -> frozenset[int]:
        """Axes over which the operands of an operation arrive partial."""
        passed = _NONE
        for sources in op.operands:
            for source in sources:
                if source in limits:
                    limit = limits[source]
                    passed |= made[source] if limit is None else limit
        return passed

    def _accepted(
        self,
        index: int,
        forms: Sequence[OpForm],
        made: Sequence[frozenset[int]],
        limits: dict[int, frozenset[int] | None],
    ) -> frozenset[int]:
        """Axes over which the only consumer of a value takes it partial."""
        value = self.graph.values[index]
        limit = limits[index]
        here = made[index] if limit is None else made[index] & limit
        producer = value.producer
        if not here or producer is None or self.graph.ops[producer[0]].op.combine not in ("", "add"):
            return _NONE
        consumer = self.graph.ops[self._next[index]]
        number = value.uses[0].number
        form = forms[consumer.index]
        here = here - form.axes
        if form.needs[number] != forms[producer[0]].makes[producer[1]]:
            return _NONE
        kind = consumer.op.short
        for other, sources in enumerate(consumer.operands):
            if other == number or not here:
                continue
            arriving = [
                (made[s] if limits[s] is None else limits[s]) if s in limits else _NONE
                for s in sources
            ]
            if kind in _ADDITIVE:
                for axes in arriving:
                    here = here & (axes or _NONE)
            elif kind in _SCALING:
                for axes in arriving:
                    here = here - (axes or _NONE)
        return here

    def _plan(
        self,
        index: int,
        tiling: Tiling,
        forms: Sequence[OpForm],
        made: frozenset[int],
        kept: frozenset[int],
    ) -> ValuePlan:
        value = self.graph.values[index]
        wanted = tiling.values[index]
        producer = value.producer
        source = wanted if producer is None else forms[producer[0]].makes[producer[1]]
        if index in self._made_freely:
            wanted = source
        needs = tuple(forms[use.op].needs[use.number] for use in value.uses)
        key = (index, source, made, kept, wanted, needs)
        plan = self._plans.get(key)
        if plan is None:
            combine = "add" if producer is None else self.graph.ops[producer[0]].op.combine
            layout = source if kept else wanted
            type_ = value.value.type
            steps = reshard(type_, source, made - kept, layout, self.mesh, combine or "add")
            moves = tuple(
                (need, reshard(type_, layout, _NONE, need, self.mesh))
                for need in dict.fromkeys(needs)
                if need != layout
            )
            plan = self._plans[key] = ValuePlan(layout, kept, steps, needs, moves)
        return plan


def _form(op: OpClass, layout: Layout) -> OpForm:
    rule = op.op.rule

    def side(tensors: tuple[tuple[tuple[int, ...], ...], ...]) -> tuple[Layout, ...]:
        def axes(dimension: tuple[int, ...]) -> Axes:
            factor = rule.leading(dimension)
            return () if factor is None else layout[factor]

        return tuple(tuple(axes(dim) for dim in tensor) for tensor in tensors)

    sums = frozenset(
        a
        for factor, axes in zip(rule.factors, layout, strict=True)
        if factor.kind == "reduction"
        for a in axes
    )
    used = frozenset(a for axes in layout for a in axes)
    return OpForm(side(rule.operands), side(rule.results), sums, used)


def _additions(graph: ClassGraph, passing: frozenset[int]) -> list[int]:
    """Additions all of whose operands may arrive partial, in program order."""
    found = [
        op.index
        for op in graph.ops
        if op.op.short in _ADDITIVE and all(s in passing for sources in op.operands for s in sources)
    ]
    return sorted(found, key=lambda index: graph.ops[index].op.index)


def _generated(graph: ClassGraph) -> list[int]:
    """Operation classes that depend on no argument and only compute elementwise, last one first."""
    found: dict[int, OpClass] = {}
    for op in sorted(graph.ops, key=lambda each: each.op.index):
        free = op.op.kind in ELEMENTWISE or op.op.short in ("broadcast_in_dim", "iota", "constant")
        if free and len(op.results) == 1 and not any(graph.values[v].is_result for v in op.results[0]):
            sources = [graph.values[v].producer for classes in op.operands for v in classes]
            if all(source is not None and source[0] in found for source in sources):
                found[op.index] = op
    return sorted(found, key=lambda index: -graph.ops[index].op.index)


def _from_result(op: OpClass, wanted: Layout | None) -> Layout:
    """The factor layout under which an elementwise operation makes its result in this layout."""
    rule = op.op.rule
    layout: list[Axes] = [()] * len(rule.factors)
    if wanted is not None:
        for dimension, axes in zip(rule.results[0], wanted, strict=True):
            factor = rule.leading(dimension)
            if factor is not None:
                layout[factor] = axes
    return tuple(layout)


def _may_pass(graph: ClassGraph, value: ValueClass) -> bool:
    """Whether a partial value may be handed on: one linear use that does not make it larger."""
    if value.producer is None or value.is_result or len(value.uses) != 1:
        return False
    use = value.uses[0]
    op = graph.ops[use.op].op
    if len(op.results) != 1 or op.kind.rpartition(".")[0] != "stablehlo":
        return False
    kind = op.short
    linear = (
        kind in _ADDITIVE
        or (kind in _LINEAR_UNARY and use.number == 0)
        or (kind in _SCALING and use.number in _SCALING[kind])
    )
    if kind == "reduce" and op.combine != "add":
        return False
    values = graph.program.values
    result, operand = values[op.results[0]].type, value.value.type
    if kind == "convert" and not _is_float(result.dtype):
        return False
    return linear and result.bytes <= operand.bytes


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("f", "bf", "complex"))
