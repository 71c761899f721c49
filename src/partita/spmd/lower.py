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
import heapq
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpForm:
    """How an operation runs on each device under a layout of its factors.

    There is one object for each class and layout, so forms are compared by identity.
    """

    needs: tuple[Layout, ...]
    """Layout of every operand."""
    makes: tuple[Layout, ...]
    """Layout of every result."""
    sums: frozenset[int]
    """Axes over which results are partial."""
    axes: frozenset[int]
    """All axes that the operation works along."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ValuePlan:
    """What happens to a value class between its definition and its uses; compared by identity."""

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
    asked: list[OpForm]
    """How the tiling asks operations to run."""
    forms: list[OpForm]
    """How they run: `asked`, but for additions that give way and what is made from nothing."""
    plans: list[ValuePlan]
    passing: dict[int, frozenset[int]]
    """Value classes kept partial and handed on so, with the axes."""
    arriving: dict[int, frozenset[int]]
    """Axes over which value classes are made partial, where a partial operand may add to them."""
    changed_ops: list[int]
    """Operation classes that run otherwise than in the lowering this was derived from."""
    changed_values: list[int]
    """Value classes planned anew since then."""

    def sums(self, value_class: int) -> frozenset[int]:
        """Axes over which a value is made partial, passed-on ones included."""
        producer = self.graph.values[value_class].producer
        own = _NONE if producer is None else self.forms[producer[0]].sums
        return own | self.arriving.get(value_class, _NONE)


@dataclasses.dataclass(frozen=True, slots=True)
class _Link:
    """A value class in whose making partial operands may take part."""

    value: int
    producer: int
    sources: tuple[int, ...]
    """Operands of the producer that may be handed on partial."""


class Lowerer:
    """Lowers tilings of one class graph over one mesh, remembering what it has lowered."""

    def __init__(self, graph: ClassGraph, mesh: Mesh) -> None:
        self.graph = graph
        self.mesh = mesh
        self._forms: list[dict[Layout, OpForm]] = [{} for _ in graph.ops]
        self._plans: dict[object, ValuePlan] = {}
        self._situations: dict[object, ValuePlan] = {}
        self._consumer = {v.index: v.uses[0].op for v in graph.values if _may_pass(graph, v)}
        self._links = _links(graph, self._consumer)
        self._made_by: dict[int, list[int]] = {}
        for link in self._links.values():
            self._made_by.setdefault(link.producer, []).append(link.value)
        self._additions = _additions(graph, self._consumer)
        self._generated = _generated(graph)
        self._feeding: dict[int, list[int]] = {}
        for place, (_, uses) in enumerate(self._generated):
            for op, _ in uses:
                self._feeding.setdefault(op, []).append(place)
        self._made_freely = frozenset(
            v for op, *_ in self._generated for classes in graph.ops[op].results for v in classes
        )
        self._adapting = [index for index, *_ in (*self._additions, *self._generated)]
        self._summing = sorted({link.producer for link in self._links.values()})
        self._users = [_getter([use.op for use in value.uses]) for value in graph.values]
        # Scalars that are read need no plan of their own: there is nothing to move.
        self._around = [
            tuple(v for classes in op.operands for v in classes if graph.values[v].colors)
            + tuple(v for classes in op.results for v in classes)
            for op in graph.ops
        ]
        self._producer = [None if v.producer is None else v.producer[0] for v in graph.values]

    def lower(
        self,
        tiling: Tiling,
        base: Lowering | None = None,
        ops: Iterable[int] = (),
        values: Iterable[int] = (),
    ) -> Lowering:
        """Lowers a tiling.

        Args:
          tiling: of this lowerer's graph.
          base: a lowering of another tiling of it, to start from.
          ops: the operation classes whose layout differs from that of `base`.
          values: the value classes whose layout differs.
        """
        graph = self.graph
        if base is None:
            asked = [self.form(op, tiling.ops[op.index]) for op in graph.ops]
        else:
            asked = base.asked.copy()
            for index in ops:
                asked[index] = self.form(graph.ops[index], tiling.ops[index])
        forms = asked.copy()
        self._give_way(tiling, forms)
        self._generate(forms, base, ops)
        passing, arriving = self._pass_on(forms)
        if base is None:
            changed_ops = list(range(len(graph.ops)))
            again = set(range(len(graph.values)))
            plans: list[ValuePlan] = [_UNPLANNED] * len(graph.values)
        else:
            maybe = dict.fromkeys((*ops, *self._adapting))
            changed_ops = [i for i in maybe if forms[i] is not base.forms[i]]
            again = set(values)
            for index in changed_ops:
                again.update(self._around[index])
            again.update(_differing(arriving, base.arriving), _differing(passing, base.passing))
            plans = base.plans.copy()
        changed_values = list(again)
        self._replan(changed_values, tiling, forms, passing, arriving, plans)
        return Lowering(
            graph,
            self.mesh,
            tiling,
            asked,
            forms,
            plans,
            passing,
            arriving,
            changed_ops,
            changed_values,
        )

    def form(self, op: OpClass, layout: Layout) -> OpForm:
        """How an operation class runs under a layout of its factors."""
        forms = self._forms[op.index]
        form = forms.get(layout)
        if form is None:
            form = forms[layout] = _form(op, layout)
        return form

    def _give_way(self, tiling: Tiling, forms: list[OpForm]) -> None:
        """Lets additions whose operands all arrive partial over an axis not work along it."""
        passed: dict[int, frozenset[int]] = {}
        for index, sources in self._additions:
            common: frozenset[int] | None = None
            for source, producer in sources:
                sums = forms[producer].sums | passed.get(source, _NONE)
                common = sums if common is None else common & sums
                if not common:
                    break
            if not common:
                continue
            op, form = self.graph.ops[index], forms[index]
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

    def _generate(self, forms: list[OpForm], base: Lowering | None, ops: Iterable[int]) -> None:
        """Has values made from nothing in the layout that all of their uses need, or whole."""
        if base is None:
            queue = list(range(len(self._generated)))
        else:
            for index, _ in self._generated:
                forms[index] = base.forms[index]
            changed = [*ops, *(i for i, _ in self._additions if forms[i] is not base.forms[i])]
            queue = sorted({place for op in changed for place in self._feeding.get(op, ())})
        while queue:
            index, uses = self._generated[heapq.heappop(queue)]
            layouts = {forms[op].needs[number] for op, number in uses}
            wanted = layouts.pop() if len(layouts) == 1 else None
            op = self.graph.ops[index]
            form = self.form(op, _from_result(op, wanted))
            if form is not forms[index]:
                forms[index] = form
                for place in self._feeding.get(index, ()):
                    if place not in queue:
                        heapq.heappush(queue, place)

    def _pass_on(
        self, forms: Sequence[OpForm]
    ) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
        """Which values are handed on partial, and which are made partial thereby.

        Starts from handing on all that may be, and takes back until everything is consistent.
        """
        arriving = self._offered(forms)
        candidates = list(arriving)
        passing = {v: axes for v, axes in arriving.items() if v in self._consumer}
        while True:
            accepted = {
                v: taken
                for v, axes in passing.items()
                if (taken := self._accepted(v, axes, forms, passing))
            }
            arriving = self._follow(forms, candidates.copy(), accepted)
            accepted = {
                v: kept for v, axes in accepted.items() if (kept := axes & arriving.get(v, _NONE))
            }
            if accepted == passing:
                return passing, arriving
            passing = accepted

    def _offered(self, forms: Sequence[OpForm]) -> dict[int, frozenset[int]]:
        """Axes over which values would be made partial if all that may be were handed on."""
        summing = [v for op in self._summing if forms[op].sums for v in self._made_by[op]]
        return self._follow(forms, summing, None)

    def _follow(
        self,
        forms: Sequence[OpForm],
        queue: list[int],
        accepted: dict[int, frozenset[int]] | None,
    ) -> dict[int, frozenset[int]]:
        """Axes over which values are made partial, followed from those in `queue`.

        Partial values are handed on over the axes `accepted`, over all if that is None.
        """
        arriving: dict[int, frozenset[int]] = {}
        while queue:
            link = self._links[queue.pop()]
            sums = forms[link.producer].sums
            for source in link.sources:
                passed = arriving.get(source)
                if passed and accepted is not None:
                    passed = passed & accepted.get(source, _NONE)
                if passed:
                    sums = sums | passed
            if sums and sums != arriving.get(link.value):
                arriving[link.value] = sums
                if link.value in self._consumer:
                    queue.extend(self._made_by[self._consumer[link.value]])
        return arriving

    def _accepted(
        self,
        index: int,
        axes: frozenset[int],
        forms: Sequence[OpForm],
        offered: dict[int, frozenset[int]],
    ) -> frozenset[int]:
        """Of the axes over which a value is offered partial, those its only consumer takes."""
        producer = self.graph.values[index].producer
        consumer = self.graph.ops[self._consumer[index]]
        form, number = forms[consumer.index], self.graph.values[index].uses[0].number
        axes = axes - form.axes
        if not axes or producer is None:
            return _NONE
        if form.needs[number] != forms[producer[0]].makes[producer[1]]:
            return _NONE
        additive = consumer.op.short in _ADDITIVE
        if additive or consumer.op.short in _SCALING:
            for other, sources in enumerate(consumer.operands):
                if other != number:
                    for source in sources:
                        theirs = offered.get(source, _NONE)
                        axes = axes & theirs if additive else axes - theirs
        return axes

    def _replan(
        self,
        indices: Iterable[int],
        tiling: Tiling,
        forms: Sequence[OpForm],
        passing: dict[int, frozenset[int]],
        arriving: dict[int, frozenset[int]],
        plans: list[ValuePlan],
    ) -> None:
        """Plans these value classes, from memory where they have been in the same situation."""
        known, layouts, producers, users = (
            self._situations,
            tiling.values,
            self._producer,
            self._users,
        )
        for index in indices:
            producer = producers[index]
            maker = None if producer is None else forms[producer]
            kept = passing.get(index)
            key = (index, maker, arriving.get(index), kept, layouts[index], users[index](forms))
            plan = known.get(key)
            if plan is None:
                made = arriving.get(index) or (_NONE if maker is None else maker.sums)
                plan = self._plan(index, layouts[index], forms, maker, made, kept or _NONE)
                known[key] = plan
            plans[index] = plan

    def _plan(
        self,
        index: int,
        wanted: Layout,
        forms: Sequence[OpForm],
        maker: OpForm | None,
        made: frozenset[int],
        kept: frozenset[int],
    ) -> ValuePlan:
        value = self.graph.values[index]
        needs = tuple(forms[use.op].needs[use.number] for use in value.uses)
        source, combine = wanted, "add"
        if maker is not None and value.producer is not None:
            source = maker.makes[value.producer[1]]
            combine = self.graph.ops[value.producer[0]].op.combine or "add"
        layout = source if kept or index in self._made_freely else wanted
        key = (index, source, made, kept, layout, needs)
        known = self._plans.get(key)
        if known is not None:
            return known
        type_ = value.value.type
        steps = reshard(type_, source, made - kept, layout, self.mesh, combine)
        moves = tuple(
            (need, reshard(type_, layout, _NONE, need, self.mesh))
            for need in dict.fromkeys(needs)
            if need != layout
        )
        plan = self._plans[key] = ValuePlan(layout, kept, steps, needs, moves)
        return plan


_UNPLANNED = ValuePlan((), _NONE, (), (), ())


def _differing(a: dict[int, frozenset[int]], b: dict[int, frozenset[int]]) -> set[int]:
    """Keys under which two dicts hold different sets."""
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def _getter(indices: list[int]) -> Callable[[Sequence[OpForm]], object]:
    """Picks these items of a list, as quickly as Python can."""
    return itemgetter(*indices) if indices else lambda _: None


def _links(graph: ClassGraph, consumer: dict[int, int]) -> dict[int, _Link]:
    """The values that may be handed on partial, and those made from them."""
    values = set(consumer)
    for v in consumer:
        values.update(r for classes in graph.ops[consumer[v]].results for r in classes)
    links: dict[int, _Link] = {}
    for v in sorted(values):
        producer = graph.values[v].producer
        if producer is not None:
            operands = graph.ops[producer[0]].operands
            sources = tuple(s for classes in operands for s in classes if s in consumer)
            links[v] = _Link(v, producer[0], sources)
    return links


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


def _additions(
    graph: ClassGraph, consumer: dict[int, int]
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Additions all of whose operands may arrive partial, in program order.

    Each with its operands as (value class, producing operation class).
    """
    found = []
    for op in sorted(graph.ops, key=lambda each: each.op.index):
        sources = [s for classes in op.operands for s in classes]
        if op.op.short in _ADDITIVE and all(s in consumer for s in sources):
            producers = [graph.values[s].producer for s in sources]
            pairs = [(s, p[0]) for s, p in zip(sources, producers, strict=True) if p is not None]
            found.append((op.index, tuple(pairs)))
    return found


def _generated(
    graph: ClassGraph,
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Operation classes that depend on no argument and only compute elementwise, last one first.

    Each with the uses of its result, as (operation class, operand number).
    """
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for op in sorted(graph.ops, key=lambda each: each.op.index):
        free = op.op.kind in ELEMENTWISE or op.op.short in ("broadcast_in_dim", "iota", "constant")
        made = [graph.values[v] for classes in op.results for v in classes]
        if free and len(op.results) == 1 and not any(v.is_result for v in made):
            sources = [graph.values[v].producer for classes in op.operands for v in classes]
            if all(source is not None and source[0] in found for source in sources):
                found[op.index] = tuple({(u.op, u.number): None for v in made for u in v.uses})
    # Scalars have only one layout.
    shaped = [i for i in found if any(graph.values[v].colors for v in graph.ops[i].results[0])]
    order = sorted(shaped, key=lambda index: -graph.ops[index].op.index)
    return [(index, found[index]) for index in order]


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
    if graph.ops[value.producer[0]].op.combine not in ("", "add"):
        return False
    use = value.uses[0]
    op = graph.ops[use.op].op
    if op.region != graph.ops[value.producer[0]].op.region:
        return False
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
    # Integer division truncates, and conversions to and from integers wrap or round.
    exact = _is_float(operand.dtype) and _is_float(result.dtype)
    if kind in ("convert", "divide") and not exact:
        return False
    return linear and result.bytes <= operand.bytes


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("f", "bf", "complex"))
