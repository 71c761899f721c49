"""Unreduced values: sums still outstanding over some axes, and when they are reduced.

They stay unreduced through linear operations as long as that saves something. They are reduced
before several uses, or before one that is not linear, makes them larger in bytes, or itself works
along the axis. Two operations are exceptions to the last, and give way: they do not work along it.
An addition of unreduced values adds all of them up, and one reduction follows instead of two. And
transposes directly after a product transpose its unreduced result: kernels can make it so. With a
reduction in between, XLA transposes all that is updated with it (a weight, its moments) to the
order of the product and back. Decisions are made for a class as a whole: a value stays unreduced
only if every member can.

A value that a loop carries stays unreduced if it starts from zeros and every iteration only adds to
it, linearly: accumulated gradients are reduced once, after the loop, and once after all loops if
it is added to the sum of an outer one. The same holds for the stack that an inner loop writes slice
by slice. The added or written value may be widened before, since it would otherwise be reduced in
every iteration. `partita.spmd.carried` finds such sums and stacks.

A single number may be added to one that is unreduced over further axes. It is masked: all devices
except the first along these axes hold zero. So the norms of many gradients, each sharded in its own
way, are reduced once, after they have been added up.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

from partita.analysis import ClassGraph, OpClass, ValueClass
from partita.program.combining import combines
from partita.program.op_traits import CARRY
from partita.spmd.carried import SEEN, CarriedSums
from partita.spmd.memoised import MemoisedByGroup, connected
from partita.tiling import Forms, OpForm

NONE: frozenset[int] = frozenset()

UnreducedAxes = dict[int, frozenset[int]]
"""Map from value classes to the axes over which they are unreduced."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Link:
    """A value class whose producer may read unreduced operands."""

    value: int
    producer: int
    sources: tuple[int, ...]
    """Operands of the producer that may stay unreduced."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """Decision about unreduced values for a group of operation classes."""

    forms: tuple[tuple[int, OpForm], ...]
    """Operation classes that give way, with their forms."""
    unreduced: UnreducedAxes
    """Value classes kept unreduced, with the axes."""
    outstanding: UnreducedAxes
    """Axes over which value classes are made unreduced, those of unreduced operands included."""

    @functools.cached_property
    def concerns(self) -> list[int]:
        """The value classes that are made or kept unreduced."""
        return sorted(self.unreduced.keys() | self.outstanding.keys())


NOTHING = Sums((), {}, {})
"""Decision where nothing is unreduced."""


class UnreducedSums:
    """Decides for one graph which values stay unreduced.

    Operations decide together if one makes what another may take unreduced.
    """

    def __init__(
        self, graph: ClassGraph, forms: Forms, generated: Collection[int], in_time: bool = False
    ) -> None:
        """Prepares the decisions.

        Args:
          graph: the folded program.
          forms: the forms of its operation classes.
          generated: constant-like operation classes, which never make unreduced values.
          in_time: whether axes are time, over which a sum is free where their loop ends.
        """
        self.graph = graph
        self.forms = forms
        carried = CarriedSums(graph, in_time)
        self._consumer = {
            v.index: v.uses[0].op
            for v in graph.values
            if not graph.program.by_xla and (_may_stay(carried, v) or carried.may_be_carried(v))
        }
        self._together = _together(carried, self._consumer)
        self._maskable = frozenset(
            v
            for v in self._consumer
            if _may_be_masked(graph, graph.values[v]) and not _is_made_by(graph, v, generated)
        )
        self._links = _links(graph, self._consumer)
        makers = ((graph.values[v].producer, op) for v, op in self._consumer.items())
        self._groups = connected(
            (maker[0], op) for maker, op in makers if maker and maker[0] not in generated
        )
        """Operation classes of every group."""
        self.decisions = MemoisedByGroup(self._groups, self._decide, len(graph.ops), seed=2)
        numbers = {op: number for number, ops in enumerate(self._groups) for op in ops}
        self.group_of = {
            v: number
            for op, number in numbers.items()
            for classes in graph.ops[op].results
            for v in classes
        }
        """Value class -> number of the group that decides about it."""
        self._made_by: dict[int, list[int]] = {}
        for link in self._links.values():
            self._made_by.setdefault(link.producer, []).append(link.value)
        self._yielding: list[list[tuple[int, tuple[tuple[int, int], ...]]]] = [
            [] for _ in self._groups
        ]
        for op, sources in _yielding(graph, self._consumer):
            if not any(maker in generated for _, maker in sources):
                self._yielding[numbers[op]].append((op, sources))

    def _decide(self, number: int, forms: Sequence[OpForm]) -> Sums:
        """Decides for a group, given the forms of all operations if none gave way."""
        own = {op: forms[op] for op in self._groups[number]}
        self._give_way(number, own)
        gave_way = tuple((op, form) for op, form in own.items() if form is not forms[op])
        return Sums(gave_way, *self._keep_unreduced(own))

    def _give_way(self, number: int, forms: dict[int, OpForm]) -> None:
        """Makes additions and transposes give way: they do not work along an axis any more.

        That is the case if all of their operands are unreduced over the axis.

        Args:
          number: the number of a group.
          forms: the forms of its operation classes; those that give way are replaced.
        """
        kept: UnreducedAxes = {}
        for index, sources in self._yielding[number]:
            common: frozenset[int] | None = None
            for source, producer in sources:
                sums = forms[producer].sums | kept.get(source, NONE)
                common = sums if common is None else common & sums
                if not common:
                    break
            if not common:
                continue
            op, form = self.graph.ops[index], forms[index]
            if common & form.axes:
                layout = tuple(tuple(a for a in axes if a not in common) for axes in form.layout)
                form = self.forms.of(op, layout)
            if self._as_made(op, form, forms):
                forms[index] = form
                for classes in op.results:
                    kept.update((r, common) for r in classes)

    def _as_made(self, op: OpClass, form: OpForm, forms: Mapping[int, OpForm]) -> bool:
        """Returns whether every operand is made in exactly the layout that a form needs."""
        for need, classes in zip(form.needs, op.operands, strict=True):
            for source in classes:
                producer = self.graph.values[source].producer
                if producer is None or forms[producer[0]].makes[producer[1]] != need:
                    return False
        return True

    def _keep_unreduced(self, forms: Mapping[int, OpForm]) -> tuple[UnreducedAxes, UnreducedAxes]:
        """Returns the axes over which values of a group stay unreduced, and are made unreduced.

        Starts from all values that may stay so, and drops some until everything is consistent.
        """
        outstanding = self._offered(forms)
        candidates = list(outstanding)
        unreduced = {v: axes for v, axes in outstanding.items() if v in self._consumer}
        while True:
            accepted = {
                v: taken
                for v, axes in unreduced.items()
                if (taken := self._accepted(v, axes, forms, unreduced))
            }
            outstanding = self._follow(forms, candidates.copy(), accepted)
            accepted = {
                v: kept for v, axes in accepted.items() if (kept := axes & outstanding.get(v, NONE))
            }
            if accepted == unreduced:
                return self._masked(accepted), outstanding
            unreduced = accepted

    def _masked(self, unreduced: UnreducedAxes) -> UnreducedAxes:
        """Adds maskable addends, to be unreduced over all axes that the sum is."""
        axes: UnreducedAxes = {}
        for v, kept in unreduced.items():
            axes[self._consumer[v]] = axes.get(self._consumer[v], NONE) | kept
        added = (
            s
            for op in axes
            for classes in self.graph.ops[op].operands
            for s in classes
            if s in self._maskable
        )
        return unreduced | {v: axes[self._consumer[v]] for v in added}

    def _offered(self, forms: Mapping[int, OpForm]) -> UnreducedAxes:
        """Returns the axes over which values are made unreduced if all that may stay so do."""
        summing = [v for op, form in forms.items() if form.sums for v in self._made_by.get(op, ())]
        return self._follow(forms, summing, None)

    def _follow(
        self,
        forms: Mapping[int, OpForm],
        queue: list[int],
        accepted: UnreducedAxes | None,
    ) -> UnreducedAxes:
        """Returns the axes over which values are made unreduced, propagated from those in `queue`.

        Values stay unreduced over the axes `accepted`, over all if that is None.
        """
        outstanding: UnreducedAxes = {}
        while queue:
            link = self._links[queue.pop()]
            sums = forms[link.producer].sums
            for source in link.sources:
                passed = outstanding.get(source)
                if passed and accepted is not None:
                    passed = passed & accepted.get(source, NONE)
                if passed:
                    sums = sums | passed
            if sums and sums != outstanding.get(link.value):
                outstanding[link.value] = sums
                if link.value in self._consumer:
                    queue.extend(self._made_by[self._consumer[link.value]])
        return outstanding

    def _accepted(
        self,
        index: int,
        axes: frozenset[int],
        forms: Mapping[int, OpForm],
        offered: UnreducedAxes,
    ) -> frozenset[int]:
        """Returns the offered axes over which the only consumer takes a value unreduced."""
        producer = self.graph.values[index].producer
        consumer = self.graph.ops[self._consumer[index]]
        form, number = forms[consumer.index], self.graph.values[index].uses[0].number
        axes = axes - form.axes
        for other in self._together.get(index, ()):
            axes = axes & offered.get(other, NONE)
        if not axes or producer is None:
            return NONE
        if form.needs[number] != forms[producer[0]].makes[producer[1]]:
            return NONE
        traits = consumer.op.traits
        for other, sources in enumerate(consumer.operands):
            alike = other == number or (traits.joint(number) and traits.joint(other))
            for source in sources:
                if traits.additive and source in self._maskable:
                    continue
                theirs = offered.get(source, NONE)
                # Members of the consumer's class read one of several classes here: all alike.
                # If it is linear in each operand alone, the other operands have to be reduced.
                axes = axes & theirs if alike else axes - theirs
        return axes


def _links(graph: ClassGraph, consumer: dict[int, int]) -> dict[int, _Link]:
    """Returns links of the values that may stay unreduced, and of those made from them."""
    values = set(consumer)
    for v in consumer:
        values.update(r for classes in graph.ops[consumer[v]].results for r in classes)
    links: dict[int, _Link] = {}
    for v in sorted(values):
        producer = graph.values[v].producer
        if producer is not None:
            operands = graph.ops[producer[0]].operands
            sources = tuple(s for classes in operands for s in classes if s in consumer)
            if graph.ops[producer[0]].op.kind == CARRY:
                if producer[1] == 0:  # read by the condition: by nothing, if the rest is unreduced
                    continue
                sources = sources[-1:]
            links[v] = _Link(v, producer[0], sources)
    return links


def _yielding(
    graph: ClassGraph, consumer: dict[int, int]
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Returns the operation classes that may give way, in program order.

    Each with its operands as (value class, producing operation class).
    """
    found = []
    makers = {op.index for op in graph.ops if op.op.traits.product}
    for op in sorted(graph.ops, key=lambda each: each.op.index):
        sources = [s for classes in op.operands for s in classes]
        traits = op.op.traits
        yields = traits.additive or traits.transposes
        if yields and all(s in consumer for s in sources):
            producers = [graph.values[s].producer for s in sources]
            pairs = [(s, p[0]) for s, p in zip(sources, producers, strict=True) if p is not None]
            if traits.additive or all(maker in makers for _, maker in pairs):
                found.append((op.index, tuple(pairs)))
                makers |= {op.index} if traits.transposes else set()
    return found


def _may_stay(carried: CarriedSums, value: ValueClass) -> bool:
    """Returns whether a value may stay unreduced: one linear use that does not enlarge it."""
    graph = carried.graph
    if value.producer is None or value.is_result or len(value.uses) != 1:
        return False
    maker = graph.ops[value.producer[0]].op
    if maker.combine not in ("", "add"):
        return False
    use = value.uses[0]
    reader, _ = graph.analysis.uses[value.value.index][0]  # of this member: it may be elsewhere
    op = graph.program.operations[reader]
    inside = maker.kind == CARRY and value.producer[1] == SEEN
    if not (carried.in_body(op, maker) if inside else op.region == maker.region):
        return False
    traits, linear = op.traits, carried.passes(use)
    if not linear or len(op.results) != 1 or (traits.reduces and op.combine != "add"):
        return False
    values = graph.program.values
    result, operand = values[op.results[0]].type, value.value.type
    exact = _is_float(operand.dtype) and _is_float(result.dtype)
    if (traits.rounds_integers and not exact) or not combines(result.dtype, "add"):
        return False
    widened = traits.converts and (carried.in_time or carried.way_to_a_sum(graph.ops[use.op]))
    return not carried.enlarges(use) or bool(widened)


def _may_be_masked(graph: ClassGraph, value: ValueClass) -> bool:
    """Returns whether a value that has one use, and no loop carries, is a number to be added."""
    added = graph.ops[value.uses[0].op].op.traits.additive
    maker = None if value.producer is None else graph.ops[value.producer[0]].op.kind
    return added and value.value.type.elements == 1 and maker != CARRY


def _is_made_by(graph: ClassGraph, index: int, ops: Collection[int]) -> bool:
    producer = graph.values[index].producer
    return producer is not None and producer[0] in ops


def _together(carried: CarriedSums, consumer: dict[int, int]) -> dict[int, tuple[int, ...]]:
    """Returns the other values that have to be unreduced, too, by value."""
    found: dict[int, tuple[int, ...]] = {}
    for v, index in consumer.items():
        op = carried.graph.ops[index]
        if op.op.kind == CARRY:
            # What the body does not read is replaced, by a loop of one layer.
            found[v] = tuple(r for r in op.results[SEEN] if carried.graph.values[r].uses)
        elif op.op.traits.converts and not carried.in_time and _wider(carried.graph, v, op):
            found[v] = carried.way_to_a_sum(op)
    return found


def _wider(graph: ClassGraph, v: int, op: OpClass) -> bool:
    return any(
        graph.values[r].value.type.bytes > graph.values[v].value.type.bytes for r in op.results[0]
    )


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("f", "bf", "complex"))
