"""Lowering: a tiling of classes -> for every value, how it is made, kept, and brought to its uses.

This one lowering is what the search costs, what the report shows and what `program` unfolds and
runs. A value is made in the layout of its operation, possibly *unreduced* (a sum over some axes is
outstanding); kept in the layout of the tiling; and needed by each use in that operation's layout.
The differences are reshards.

How long values stay unreduced is decided in `unreduced`.

Values made from nothing are made in whatever layout their uses need, see `generated`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from partita.analysis import Between, ClassGraph, ValueClass
from partita.mesh import Mesh
from partita.spmd.decisions import getter
from partita.spmd.generated import Generated
from partita.spmd.reshard import reshard, traffic
from partita.spmd.steps import Step
from partita.spmd.unreduced import NONE, NOTHING, Sums, UnreducedAxes, UnreducedSums
from partita.tiling import Forms, Layout, Need, OpForm, Tiling


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
    unreduced_sums: list[Sums]
    """What is decided about unreduced values, by the group that decides."""
    changed_ops: list[int]
    """Operation classes that run otherwise than in the lowering this was derived from."""
    changed_values: list[int]
    """Value classes planned anew since then."""
    regathered: Mapping[int, Between] = dataclasses.field(default_factory=dict)
    """The value classes that are gathered again, and between which uses; others are kept."""

    def regathering(self, regathered: Mapping[int, Between]) -> Lowering:
        """The same lowering with these value classes gathered again."""
        return dataclasses.replace(self, regathered=regathered)

    @functools.cached_property
    def unreduced(self) -> UnreducedAxes:
        """Value classes kept unreduced, with the axes."""
        return {v: axes for each in self.unreduced_sums for v, axes in each.unreduced.items()}

    @functools.cached_property
    def outstanding(self) -> UnreducedAxes:
        """Axes over which value classes are made unreduced, those of unreduced operands
        included."""
        return {v: axes for each in self.unreduced_sums for v, axes in each.outstanding.items()}

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
        self._generated = Generated(graph, self._forms)
        self._sums = UnreducedSums(graph, self._forms, self._generated.ops)
        self._group_of = [self._sums.group_of.get(v, -1) for v in range(len(graph.values))]
        self._plans: dict[object, ValuePlan] = {}
        self._situations: dict[object, ValuePlan] = {}
        self._users = [getter([use.op for use in value.uses]) for value in graph.values]
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
        ops: Collection[int] = (),
        values: Collection[int] = (),
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
            base = self._start(tiling)
            ops, values = range(len(graph.ops)), range(len(graph.values))
        asked, forms = base.asked.copy(), base.forms.copy()
        for index in ops:
            asked[index] = self._forms.of(graph.ops[index], tiling.ops[index])
        sums, again = base.unreduced_sums.copy(), set(values)
        changed = self._give_way(ops, asked, forms, sums, again)
        changed_ops = [index for index in changed if forms[index] is not base.forms[index]]
        changed_ops += self._generate(changed_ops, forms)
        for index in changed_ops:
            again.update(self._around[index])
        plans, changed_values = base.plans.copy(), list(again)
        self._replan(changed_values, tiling, forms, sums, plans)
        return Lowering(
            graph, self.mesh, tiling, asked, forms, plans, sums, changed_ops, changed_values
        )

    def _start(self, tiling: Tiling) -> Lowering:
        """A lowering in which nothing is known yet, to start from."""
        graph, forms = self.graph, [_UNFORMED] * len(self.graph.ops)
        for index, form in self._generated.unread:
            forms[index] = form
        sums, plans = [NOTHING] * len(self._sums.decisions), [_UNPLANNED] * len(graph.values)
        return Lowering(graph, self.mesh, tiling, forms, forms, plans, sums, [], [])

    def _give_way(
        self,
        ops: Iterable[int],
        asked: Sequence[OpForm],
        forms: list[OpForm],
        sums: list[Sums],
        again: set[int],
    ) -> Iterable[int]:
        """Has operations run as they are asked to, but for those that give way.

        Args:
          ops: the operation classes that are asked for something else than before.
          asked: how they are asked to run.
          forms: how all run; replaced.
          sums: what is decided about unreduced values; replaced.
          again: gets the value classes of which something else is decided now.

        Returns:
          The operation classes whose form may have changed.
        """
        given = self._generated.ops
        own = dict.fromkeys(index for index in ops if index not in given)
        for index in own:
            forms[index] = asked[index]
        decisions = self._sums.decisions
        for number in decisions.touched(own):
            before, now = sums[number], decisions.of(number, asked)
            for index, _ in before.forms:
                own[index], forms[index] = None, asked[index]
            for index, form in now.forms:
                own[index], forms[index] = None, form
            if now is not before:
                sums[number] = now
                again |= now.differing(before)
        return own

    def _generate(self, changed: Iterable[int], forms: list[OpForm]) -> list[int]:
        """Has values made from nothing in the layout that all of their uses need, or replicated.

        Args:
          changed: the operation classes whose form has changed.
          forms: of all; replaced.

        Returns:
          The operation classes of such values whose form has changed.
        """
        found, decisions = [], self._generated.decisions
        for number in decisions.touched(changed):
            for index, form in decisions.of(number, forms):
                if form is not forms[index]:
                    forms[index] = form
                    found.append(index)
        return found

    def _replan(
        self,
        indices: Iterable[int],
        tiling: Tiling,
        forms: Sequence[OpForm],
        sums: Sequence[Sums],
        plans: list[ValuePlan],
    ) -> None:
        """Plans these value classes, from memory where they have been in the same situation."""
        known, layouts, producers = self._situations, tiling.values, self._producer
        users, group_of = self._users, self._group_of
        for index in indices:
            producer = producers[index]
            maker = None if producer is None else forms[producer]
            group = sums[group_of[index]] if group_of[index] >= 0 else NOTHING
            made, kept = group.outstanding.get(index), group.unreduced.get(index)
            key = (index, maker, made, kept, layouts[index], users[index](forms))
            plan = known.get(key)
            if plan is None:
                made = made or (NONE if maker is None else maker.sums)
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
        layout = source if kept or index in self._generated.values else wanted
        key = (index, source, made, kept, layout, needs)
        known = self._plans.get(key)
        if known is not None:
            return known
        if source == layout and kept == made and needs.count((layout, ())) == len(needs):
            plan = self._plans[key] = ValuePlan(layout, kept, (), needs, ())  # nothing moves
            return plan
        mesh, left, latency = self.mesh, made - kept, self.latency_bytes
        way = functools.partial(reshard, value.value.type, latency_bytes=latency)
        steps: tuple[Step, ...] = ()
        if source != layout or left or kept != made:
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
_UNFORMED = OpForm((), (), (), NONE, NONE, ())
