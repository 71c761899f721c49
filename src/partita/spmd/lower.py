"""Lowering: from a tiling of classes to a plan for every value, with its reshards.

The search prices this one lowering, the report shows it, and `program` unfolds and runs it. A value
is made in the layout of its operation, possibly *unreduced* (a sum over some axes is outstanding).
It is stored in the layout of the tiling, and needed by each use in that operation's layout. The
differences are reshards.

`unreduced` decides how long values stay unreduced. Constant-like values are made in whatever layout
their uses need, see `generated`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partita.analysis import Between, ClassGraph, ValueClass, Window
from partita.mesh import Mesh
from partita.spmd.generated import Generated
from partita.spmd.reshard import reshard, traffic
from partita.spmd.steps import Step
from partita.spmd.unreduced import NONE, NOTHING, Sums, UnreducedAxes, UnreducedSums
from partita.spmd.zobrist import View, ZobristHashes, ZobristKeys
from partita.tiling import LAYOUTS, Forms, Layout, Need, OpForm, Tiling


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ValuePlan:
    """Plan of a value class from its definition to its uses; compared by identity."""

    layout: Layout
    """Layout in which it is stored."""
    unreduced: frozenset[int]
    """Axes over which it is stored unreduced: sums are outstanding."""
    steps: tuple[Step, ...]
    """Steps from the layout in which it is made to the one in which it is stored."""
    needs: tuple[Need, ...]
    """Layout and halo that each use needs."""
    reshards: tuple[tuple[Need, tuple[Step, ...]], ...]
    """Steps from the stored layout to each distinct need that differs from it."""
    value: int
    """The value class."""

    def windows(self, value: ValueClass, need: Need, between: Between) -> list[Window]:
        """Returns the use windows of the value class that contain this need, in order."""
        uses = zip(value.uses, self.needs, strict=True)
        return sorted({use.windows[between] for use, other in uses if other == need})

    def runs(self, value: ValueClass, need: Need, between: Between) -> int:
        """Returns how often the value class is gathered for this need, per time it is made."""
        return sum(window.runs for window in self.windows(value, need, between))


@dataclasses.dataclass(frozen=True, eq=False)
class Situation:
    """Numbers and input hashes of a lowering, from which the next lowering starts."""

    asked: np.ndarray
    """Numbers of the forms that the tiling asks for, by operation class."""
    running: np.ndarray
    """Numbers of the forms that run: as asked, except where operations give way or are
    constant-like."""
    planned: np.ndarray
    """Numbers of the plans, by value class."""
    summed: np.ndarray
    """Hashes of the decisions about unreduced values, by value class."""
    groups: np.ndarray
    """Input hashes of the groups that decide about unreduced values."""
    generated: np.ndarray
    """Input hashes of the groups of constant-like values."""
    around: np.ndarray
    """Hashes of the forms of the operations around each value class."""
    values: np.ndarray
    """Input hashes of value classes: `around`, `summed` and the keys of wanted layouts."""
    empty: bool = False
    """True before the first lowering."""


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A tiling, lowered. `forms` by operation class, `plans` by value class."""

    graph: ClassGraph
    mesh: Mesh
    tiling: Tiling
    forms: View[OpForm]
    """Form of every operation class."""
    plans: View[ValuePlan]
    decided: list[Sums]
    """Decisions about unreduced values, by group."""
    situation: Situation | None
    """State to start the next lowering from; None if dropped to save memory."""
    known: Known
    """All forms and plans of the lowerer, which `forms` and `plans` number."""
    regathered: Mapping[int, Between] = dataclasses.field(default_factory=dict)
    """Value classes gathered again -> between which uses; the gathered copy of others is kept."""

    def regathering(self, regathered: Mapping[int, Between]) -> Lowering:
        """Returns the same lowering with these value classes gathered again."""
        return dataclasses.replace(self, regathered=regathered)

    def without_situation(self) -> Lowering:
        """Returns the same lowering in less memory. The next one cannot start from it."""
        return dataclasses.replace(self, situation=None)

    @functools.cached_property
    def unreduced(self) -> UnreducedAxes:
        """Value classes kept unreduced, with the axes."""
        return {v: axes for each in self.decided for v, axes in each.unreduced.items()}

    @functools.cached_property
    def outstanding(self) -> UnreducedAxes:
        """Axes over which value classes are made unreduced, those of unreduced operands
        included."""
        return {v: axes for each in self.decided for v, axes in each.outstanding.items()}

    def sums(self, value_class: int) -> frozenset[int]:
        """Returns the axes over which a value is made unreduced, those of its operands included."""
        producer = self.graph.values[value_class].producer
        own = NONE if producer is None else self.forms[producer[0]].sums
        return own | self.outstanding.get(value_class, NONE)

    def steps(self) -> Iterator[tuple[int, Step, list[Window]]]:
        """Yields every resharding step: value class, step, use windows that it runs for."""
        once = [Window(0)]
        for index, plan in enumerate(self.plans):
            value, between = self.graph.values[index], self.regathered.get(index, Between.NONE)
            for step in plan.steps:
                yield index, step, once
            for need, steps in plan.reshards:
                windows = plan.windows(value, need, between)
                for step in steps:
                    yield index, step, windows

    def counts(self) -> dict[str, int]:
        """Returns the number of collectives by kind in the whole program; loops count once."""
        found: dict[str, int] = {}
        for index, step, windows in self.steps():
            if step.is_collective:
                members = len(self.graph.values[index].members)
                found[step.kind] = found.get(step.kind, 0) + len(windows) * members
        for op in self.graph.ops:
            for own in op.op.work.collectives if op.op.work else ():
                found[own.kind] = found.get(own.kind, 0) + len(op.members)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """All forms and plans that a lowerer has made, by number."""

    forms: list[OpForm]
    plans: list[ValuePlan]


class Lowerer:
    """Lowers tilings of one class graph over one mesh, and memoises forms and plans.

    To compare reshards, each collective counts the bytes that it sends and `latency_bytes` more. If
    the axes of the mesh are `in_time`, sums over them are reduced as late as possible.
    """

    def __init__(
        self, graph: ClassGraph, mesh: Mesh, latency_bytes: int = 0, in_time: bool = False
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.latency_bytes = latency_bytes
        self._forms = Forms(graph)
        self._generated = Generated(graph, self._forms)
        self._sums = UnreducedSums(graph, self._forms, self._generated.ops, in_time)
        self._group_of = [self._sums.group_of.get(v, -1) for v in range(len(graph.values))]
        self._plans: dict[object, int] = {}
        self._planned: dict[int, int] = {}
        """Cache: input hash of a value class -> number of its plan."""
        self.known = Known(self._forms.all, [])
        self._around = ZobristHashes(list(map(_around, graph.values)), len(graph.ops), seed=3)
        self._marks = ZobristKeys(4), ZobristKeys(5), ZobristKeys(6)
        """Zobrist keys of forms, of layouts, and of decisions about unreduced values."""
        self._summed: dict[object, int] = {}
        """Numbering of the distinct decisions about one value class."""
        self._of_sums: dict[Sums, tuple[np.ndarray, np.ndarray]] = {}
        self._free = np.ones(len(graph.ops), dtype=bool)
        """False for constant-like operation classes, which do not take the form of the tiling."""
        self._free[list(self._generated.ops)] = False

    def lower(self, tiling: Tiling, base: Lowering | None = None) -> Lowering:
        """Lowers a tiling.

        Args:
          tiling: the tiling of this lowerer's graph.
          base: a lowering by this lowerer of another tiling of it, to start from.
        """
        count = tiling.count
        before, decided = self._start() if base is None else (base.situation, base.decided)
        assert before is not None, "nothing to start from"
        if base is None:
            ops = np.arange(count)
        else:
            ops = np.flatnonzero(tiling.row[:count] != base.tiling.row[:count])
        asked = before.asked.copy()
        asked[ops] = self._forms.numbers(ops, tiling.row[ops])
        running, sums, summed = before.running.copy(), decided.copy(), before.summed.copy()
        free = ops[self._free[ops]]
        running[free] = asked[free]
        groups = self._give_way(before, asked, running, sums, summed)
        generated = self._generate(before, running)
        row = tiling.row[count:]
        known = None if before.empty else before.around
        around = self._situations(self._around, known, before.running, running)
        values = around + summed
        values += self._marks[1].of(row, len(LAYOUTS.all))
        forms, planned = View(self.known.forms, running), before.planned.copy()
        changed = np.flatnonzero(values != before.values)
        keys = values[changed].tolist()
        numbers = list(map(self._planned.get, keys))
        for place, number in enumerate(numbers):
            if number is None:
                index = int(changed[place])
                number = self._plan_of(index, LAYOUTS.all[row[index]], forms, sums)
                numbers[place] = self._planned[keys[place]] = number
        planned[changed] = numbers
        plans = View(self.known.plans, planned)
        situation = Situation(asked, running, planned, summed, groups, generated, around, values)
        return Lowering(self.graph, self.mesh, tiling, forms, plans, sums, situation, self.known)

    def _start(self) -> tuple[Situation, list[Sums]]:
        """Returns the state before the first lowering, and no decisions about unreduced values."""
        graph = self.graph
        asked, running = (np.zeros(len(graph.ops), dtype=np.int32) for _ in range(2))
        for index, form in self._generated.unread:
            running[index] = form.number
        planned = np.zeros(len(graph.values), dtype=np.int32)
        sums = [NOTHING] * len(self._sums.decisions)
        summed, groups, generated, around, values = (
            np.zeros(size, dtype=np.uint64)
            for size in (
                len(planned),
                len(sums),
                len(self._generated.decisions),
                len(planned),
                len(planned),
            )
        )
        situation = Situation(
            asked, running, planned, summed, groups, generated, around, values, empty=True
        )
        return situation, sums

    def _situations(
        self, of: ZobristHashes, before: np.ndarray | None, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        """Returns input hashes, updated from those before if there are any.

        `old` and `new` are the form numbers of operation classes before and now.
        """
        marks = self._marks[0].first(len(self.known.forms))
        return of.of(marks[new]) if before is None else of.after(before, marks, old, new)

    def _give_way(
        self,
        before: Situation,
        asked: np.ndarray,
        running: np.ndarray,
        sums: list[Sums],
        summed: np.ndarray,
    ) -> np.ndarray:
        """Sets operations to the forms asked for, except those that give way.

        Args:
          before: the state to start from.
          asked: the form numbers that the tiling asks for.
          running: the form numbers that run; changed in place.
          sums: the decisions about unreduced values; changed in place.
          summed: their hashes by value class; changed in place.

        Returns:
          The input hashes of the groups that decide.
        """
        decisions, forms = self._sums.decisions, View(self.known.forms, asked)
        known = None if before.empty else before.groups
        groups = self._situations(decisions.situations, known, before.asked, asked)
        for number, now in decisions.of(before.groups, groups, forms):
            old = sums[number]
            if now is not old:
                sums[number] = now
                for index, _ in old.forms:
                    running[index] = asked[index]
                if old.concerns:
                    values, marks = self._marks_of(old)
                    summed[values] -= marks
                if now.concerns:
                    values, marks = self._marks_of(now)
                    summed[values] += marks
            for index, form in now.forms:
                running[index] = form.number
        return groups

    def _marks_of(self, sums: Sums) -> tuple[np.ndarray, np.ndarray]:
        """Returns the value classes that a decision is about, and the Zobrist keys of it."""
        found = self._of_sums.get(sums)
        if found is None:
            pairs = [(sums.outstanding.get(v), sums.unreduced.get(v)) for v in sums.concerns]
            numbers = [self._summed.setdefault(pair, len(self._summed)) for pair in pairs]
            marks = self._marks[2].of(np.array(numbers), len(self._summed))
            found = self._of_sums[sums] = np.array(sums.concerns), marks
        return found

    def _generate(self, before: Situation, running: np.ndarray) -> np.ndarray:
        """Sets constant-like values to the layout that all of their uses need, or replicates them.

        Args:
          before: the state to start from.
          running: the form numbers that run; changed in place.

        Returns:
          The input hashes of the groups of such values.
        """
        decisions, forms = self._generated.decisions, View(self.known.forms, running)
        known = None if before.empty else before.generated
        groups = self._situations(decisions.situations, known, before.running, running)
        for _, made in decisions.of(before.generated, groups, forms):
            for index, form in made:
                running[index] = form.number
        return groups

    def _plan_of(
        self, index: int, layout: Layout, forms: Sequence[OpForm], sums: Sequence[Sums]
    ) -> int:
        """Returns the number of the plan of a value class, given the layout to store it in."""
        producer = self.graph.values[index].producer
        maker = None if producer is None else forms[producer[0]]
        group = sums[self._group_of[index]] if self._group_of[index] >= 0 else NOTHING
        made = group.outstanding.get(index) or (NONE if maker is None else maker.sums)
        return self._plan(index, layout, forms, maker, made, group.unreduced.get(index) or NONE)

    def _plan(
        self,
        index: int,
        wanted: Layout,
        forms: Sequence[OpForm],
        maker: OpForm | None,
        made: frozenset[int],
        kept: frozenset[int],
    ) -> int:
        value = self.graph.values[index]
        needs = tuple(forms[use.op].need(use.number) for use in value.uses)
        source, combine = wanted, "add"
        if maker is not None and value.producer is not None:
            source = maker.makes[value.producer[1]]
            combine = self.graph.ops[value.producer[0]].op.combine or "add"
        if not value.uses and not value.is_result:
            wanted, kept = source, made  # nothing reads it: nothing moves it either
        layout = source if kept or index in self._generated.values else wanted
        key = (index, source, made, kept, layout, needs)
        known = self._plans.get(key)
        if known is not None:
            return known
        if source == layout and kept == made and needs.count((layout, ())) == len(needs):
            return self._add(key, ValuePlan(layout, kept, (), needs, (), index))  # nothing moves
        mesh, left, latency = self.mesh, made - kept, self.latency_bytes
        way = functools.partial(reshard, value.value.type, latency_bytes=latency)
        steps: tuple[Step, ...] = ()
        if source != layout or left or kept != made:
            before = self._summed_before(left, maker)
            for group in before:
                steps += way(source, group, source, mesh, combine)
            last = left.difference(*before)
            steps += way(source, last, layout, mesh, combine, masked=kept - made)
        different = dict.fromkeys(needs)
        if steps and len(different) == 1 and not (value.is_result or self.graph.program.by_xla):
            # No use needs the stored layout: reshard straight to the need where that is cheaper.
            ((need, _),) = different
            straight = way(source, left, need, mesh, combine, masked=kept - made)
            around = steps + way(layout, NONE, need, mesh)
            if traffic(straight, mesh, latency) < traffic(around, mesh, latency):
                layout, steps = need, straight
        reshards = tuple(
            (need, way(layout, NONE, need[0], mesh, halo=need[1]))
            for need in different
            if need != (layout, ())
        )
        return self._add(key, ValuePlan(layout, kept, steps, needs, reshards, index))

    def _summed_before(self, left: frozenset[int], maker: OpForm | None) -> list[frozenset[int]]:
        """Returns the axes that are reduced by collectives of their own, before the last ones.

        XLA's partitioner completes a reduction dimension by dimension, the last one first.
        """
        if maker is None or not self.graph.program.by_xla or len(left) < 2:
            return []
        op = self.graph.ops[maker.op].op
        factors = zip(op.rule.factors, maker.layout, strict=True)
        groups = [left & set(axes) for factor, axes in factors if factor.kind == "reduction"]
        return [group for group in groups if group][:0:-1] if op.traits.reduces else []

    def _add(self, key: object, plan: ValuePlan) -> int:
        number = self._plans[key] = len(self.known.plans)
        self.known.plans.append(plan)
        return number


def _around(value: ValueClass) -> list[int]:
    """Returns the operation classes on which the plan of a value class depends."""
    made = [] if value.producer is None else [value.producer[0]]
    if not value.colors:
        return made  # a scalar: nothing moves for its uses
    return list(dict.fromkeys([*made, *(use.op for use in value.uses)]))
