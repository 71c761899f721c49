"""Lowering: a tiling of classes -> for every value, how it is made, kept, and brought to its uses.

This one lowering is what the search costs, what the report shows and what `program` unfolds and
runs. A value is made in the layout of its operation, possibly *unreduced* (a sum over some axes is
outstanding); kept in the layout of the tiling; and needed by each use in that operation's layout.
The differences are reshards.

How long values stay unreduced is decided in `unreduced`.

Values made from nothing (constants, iotas, what is computed from them alone) are made in whatever
layout their uses need, and never cost a collective.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from partita.analysis import Between, ClassGraph, ValueClass
from partita.mesh import Mesh
from partita.spmd.reshard import reshard, traffic
from partita.spmd.steps import Step
from partita.spmd.unreduced import NONE, UnreducedAxes, UnreducedSums
from partita.tiling import Forms, Layout, Need, OpForm, Tiling, layout_from_result


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ValuePlan:
    """What happens to a value class between its definition and its uses; compared by identity."""

    layout: Layout
    """The layout it is kept in."""
    unreduced: frozenset[int]
    """Axes over which it is kept unreduced: sums are outstanding."""
    steps: tuple[Step, ...]
    """From made to kept."""
    needs: tuple[Need, ...]
    """How each use needs it."""
    reshards: tuple[tuple[Need, tuple[Step, ...]], ...]
    """For each different need that it does not meet as kept, the steps from kept to there."""

    def windows(self, value: ValueClass, need: Need, between: Between) -> int:
        """How many use windows of the value class there are in which it is needed so."""
        uses = zip(value.uses, self.needs, strict=True)
        return len({use.windows[between] for use, other in uses if other == need})


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A tiling, lowered. `forms` by operation class, `plans` by value class."""

    graph: ClassGraph
    mesh: Mesh
    tiling: Tiling
    asked: list[OpForm]
    """How the tiling asks operations to run."""
    forms: list[OpForm]
    """How they run: `asked`, but for what gives way and what is made from nothing."""
    plans: list[ValuePlan]
    unreduced: UnreducedAxes
    """Value classes kept unreduced, with the axes."""
    outstanding: UnreducedAxes
    """Axes over which value classes are made unreduced, those of unreduced operands included."""
    changed_ops: list[int]
    """Operation classes that run otherwise than in the lowering this was derived from."""
    changed_values: list[int]
    """Value classes planned anew since then."""
    regathered: Mapping[int, Between] = dataclasses.field(default_factory=dict)
    """The value classes that are gathered again, and between which uses; others are kept."""

    def regathering(self, regathered: Mapping[int, Between]) -> Lowering:
        """The same lowering with these value classes gathered again."""
        return dataclasses.replace(self, regathered=regathered)

    def sums(self, value_class: int) -> frozenset[int]:
        """Axes over which a value is made unreduced, those of its operands included."""
        producer = self.graph.values[value_class].producer
        own = NONE if producer is None else self.forms[producer[0]].sums
        return own | self.outstanding.get(value_class, NONE)

    def steps(self) -> Iterator[tuple[int, Step, int]]:
        """Every step of every reshard: the value class, the step, how often a member makes it."""
        for index, plan in enumerate(self.plans):
            value, between = self.graph.values[index], self.regathered.get(index, Between.NONE)
            for step in plan.steps:
                yield index, step, 1
            for need, steps in plan.reshards:
                repeats = plan.windows(value, need, between)
                for step in steps:
                    yield index, step, repeats

    def counts(self) -> dict[str, int]:
        """Number of collectives of each kind in the whole program; loops count once."""
        found: dict[str, int] = {}
        for index, step, repeats in self.steps():
            if step.is_collective:
                members = len(self.graph.values[index].members)
                found[step.kind] = found.get(step.kind, 0) + repeats * members
        for op in self.graph.ops:
            for own in op.op.work.collectives if op.op.work else ():
                found[own.kind] = found.get(own.kind, 0) + len(op.members)
        return found


class Lowerer:
    """Lowers tilings of one class graph over one mesh, remembering what it has lowered.

    A collective costs what it takes to move its bytes, and `latency_bytes` more.
    """

    def __init__(self, graph: ClassGraph, mesh: Mesh, latency_bytes: int = 0) -> None:
        self.graph = graph
        self.mesh = mesh
        self.latency_bytes = latency_bytes
        self._forms = Forms(graph)
        self._sums = UnreducedSums(graph, self._forms)
        self._plans: dict[object, ValuePlan] = {}
        self._situations: dict[object, ValuePlan] = {}
        self._generated = _generated(graph)
        self._feeding: dict[int, list[int]] = {}
        for place, (_, uses) in enumerate(self._generated):
            for op, _ in uses:
                self._feeding.setdefault(op, []).append(place)
        self._made_freely = frozenset(
            v for op, *_ in self._generated for classes in graph.ops[op].results for v in classes
        )
        self._adapting = [*self._sums.yielding, *(index for index, _ in self._generated)]
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
            asked = [self._forms.of(op, tiling.ops[op.index]) for op in graph.ops]
        else:
            asked = base.asked.copy()
            for index in ops:
                asked[index] = self._forms.of(graph.ops[index], tiling.ops[index])
        forms = asked.copy()
        self._sums.give_way(tiling.ops, forms)
        self._generate(forms, base, ops)
        unreduced, outstanding = self._sums.keep_unreduced(forms)
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
            again.update(
                _differing(outstanding, base.outstanding), _differing(unreduced, base.unreduced)
            )
            plans = base.plans.copy()
        changed_values = list(again)
        self._replan(changed_values, tiling, forms, unreduced, outstanding, plans)
        return Lowering(
            graph,
            self.mesh,
            tiling,
            asked,
            forms,
            plans,
            unreduced,
            outstanding,
            changed_ops,
            changed_values,
        )

    def _generate(self, forms: list[OpForm], base: Lowering | None, ops: Iterable[int]) -> None:
        """Has values made from nothing in the layout that all of their uses need, or replicated."""
        if base is None:
            queue = list(range(len(self._generated)))
        else:
            for index, _ in self._generated:
                forms[index] = base.forms[index]
            gave_way = self._sums.yielding
            changed = [*ops, *(i for i in gave_way if forms[i] is not base.forms[i])]
            queue = sorted({place for op in changed for place in self._feeding.get(op, ())})
        while queue:
            index, uses = self._generated[heapq.heappop(queue)]
            layouts = {forms[op].needs[number] for op, number in uses}
            wanted = layouts.pop() if len(layouts) == 1 else None
            op = self.graph.ops[index]
            form = self._forms.of(op, layout_from_result(op, wanted))
            if form is not forms[index]:
                forms[index] = form
                for place in self._feeding.get(index, ()):
                    if place not in queue:
                        heapq.heappush(queue, place)

    def _replan(
        self,
        indices: Iterable[int],
        tiling: Tiling,
        forms: Sequence[OpForm],
        unreduced: UnreducedAxes,
        outstanding: UnreducedAxes,
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
            kept = unreduced.get(index)
            key = (index, maker, outstanding.get(index), kept, layouts[index], users[index](forms))
            plan = known.get(key)
            if plan is None:
                made = outstanding.get(index) or (NONE if maker is None else maker.sums)
                plan = self._plan(index, layouts[index], forms, maker, made, kept or NONE)
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
        needs = tuple(forms[use.op].need(use.number) for use in value.uses)
        source, combine = wanted, "add"
        if maker is not None and value.producer is not None:
            source = maker.makes[value.producer[1]]
            combine = self.graph.ops[value.producer[0]].op.combine or "add"
        layout = source if kept or index in self._made_freely else wanted
        key = (index, source, made, kept, layout, needs)
        known = self._plans.get(key)
        if known is not None:
            return known
        mesh, left, latency = self.mesh, made - kept, self.latency_bytes
        way = functools.partial(reshard, value.value.type, latency_bytes=latency)
        steps = way(source, left, layout, mesh, combine, masked=kept - made)
        different = dict.fromkeys(needs)
        if steps and len(different) == 1 and not value.is_result:
            # Nothing needs it as it is to be kept: it goes straight there where that is cheaper.
            ((need, _),) = different
            straight = way(source, left, need, mesh, combine)
            around = steps + way(layout, NONE, need, mesh)
            if traffic(straight, mesh, latency) < traffic(around, mesh, latency):
                layout, steps = need, straight
        reshards = tuple(
            (need, way(layout, NONE, need[0], mesh, halo=need[1]))
            for need in different
            if need != (layout, ())
        )
        plan = self._plans[key] = ValuePlan(layout, kept, steps, needs, reshards)
        return plan


_UNPLANNED = ValuePlan((), NONE, (), (), ())


def _differing(a: UnreducedAxes, b: UnreducedAxes) -> set[int]:
    """Keys under which two dicts hold different sets."""
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def _getter(indices: list[int]) -> Callable[[Sequence[OpForm]], object]:
    """Picks these items of a list, as quickly as Python can."""
    return itemgetter(*indices) if indices else lambda _: None


def _generated(
    graph: ClassGraph,
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Operation classes that depend on no argument and only compute elementwise, last one first.

    Each with the uses of its result, as (operation class, operand number).
    """
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for op in sorted(graph.ops, key=lambda each: each.op.index):
        made = [graph.values[v] for classes in op.results for v in classes]
        if op.op.traits.free and len(op.results) == 1 and not any(v.is_result for v in made):
            sources = [graph.values[v].producer for classes in op.operands for v in classes]
            if all(source is not None and source[0] in found for source in sources):
                found[op.index] = tuple({(u.op, u.number): None for v in made for u in v.uses})
    # Scalars have only one layout.
    shaped = [i for i in found if any(graph.values[v].colors for v in graph.ops[i].results[0])]
    order = sorted(shaped, key=lambda index: -graph.ops[index].op.index)
    return [(index, found[index]) for index in order]
