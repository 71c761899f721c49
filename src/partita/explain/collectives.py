"""Explanation of a collective: its place, its reasons, its cost, and the cost of alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from partita.analysis.describe import factor_place
from partita.escape import printed
from partita.explain.alternatives import Alternative, Candidate, Costing
from partita.explain.candidates import candidates
from partita.explain.origins import Decision
from partita.explain.view import CollectiveGroup, PlanView, show_step
from partita.program.collectives import ALL_TO_ALL, REDUCE_SCATTER
from partita.program.ir import Operation
from partita.spmd import Reshard
from partita.spmd.replication import replication_reason
from partita.text import seconds
from partita.tiling import Node

MOST_USES = 4
"""Uses of a collective that are printed."""


@dataclasses.dataclass(frozen=True)
class CollectiveExplanation:
    """Explanation of a collective: why it is needed, its cost, and the cost of alternatives.

    Sizes in bytes per device, times in seconds.
    """

    index: int
    """Its number in `Plan.collectives`."""
    alike: tuple[int, ...]
    """The numbers of all collectives that this holds for, its own among them."""
    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    """Number of executions per step."""
    seconds: float
    """Time of one execution."""
    hidden: bool
    """True if it can overlap with other work."""
    value: str
    """Value that it moves."""
    type: str
    """Type of the value, before sharding."""
    made_by: str
    """The operation that makes the value, with its source line; of an argument, its name."""
    uses: tuple[str, ...]
    """The operations that it is moved for, with their source lines, and results."""
    reasons: tuple[str, ...]
    decisions: tuple[Decision, ...]
    """The decisions that made it necessary."""
    alternatives: tuple[Alternative, ...]
    """Changes of one decision, estimated; the quickest that fits first."""
    untried: int
    """Changes that were not tried, because of the limit."""
    unknown: tuple[str, ...] = ()
    """Changes whose cost cannot be known, with the reason."""

    @property
    def total_seconds(self) -> float:
        """Time of all executions of all equivalent collectives."""
        return self.seconds * self.count * len(self.alike)

    @printed
    def __str__(self) -> str:
        what = show_step(self.axes, self.kind, self.bytes)
        times = f", {self.count} times a step" if self.count > 1 else ""
        under = "hidden under other work" if self.hidden else "exposed"
        lines = [
            f"#{self.index} {what} of {self.value} : {self.type}",
            f"  takes {seconds(self.seconds)}{times}, {under}",
        ]
        if len(self.alike) > 1:
            numbers = ", ".join(f"#{n}" for n in self.alike[:6])
            more = ", ..." if len(self.alike) > 6 else ""
            lines.append(
                f"  {len(self.alike)} alike, {seconds(self.total_seconds)} in all: {numbers}{more}"
            )
        lines.append(f"  between {self.made_by}")
        shown = list(self.uses[:MOST_USES])
        if len(self.uses) > MOST_USES:
            shown.append(f"{len(self.uses) - MOST_USES} more")
        lines.append(f"  and {', '.join(shown)}")
        lines += [f"  because {reason}" for reason in self.reasons]
        for decision in self.decisions:
            lines += [f"    {line}" for line in str(decision).splitlines()]
        if self.alternatives:
            lines.append("  alternatives, and the change of the whole step and of peak memory:")
        for alternative in self.alternatives:
            lines += [f"    {line}" for line in str(alternative).splitlines()]
        if self.untried:
            lines.append(f"  not tried: {self.untried} more; alternatives= says how many to try")
        lines += [f"  not known: {what}" for what in self.unknown]
        return "\n".join(lines)


def explain_group(
    view: PlanView, group: CollectiveGroup, costing: Costing, index: int | None = None
) -> CollectiveExplanation:
    """Explains a collective, which represents all equivalent ones.

    Args:
      view: of the plan.
      group: the collectives.
      costing: of alternatives.
      index: number of the collective to explain; the first by default.
    """
    at = 0 if index is None else group.indices.index(index)
    reshard, value = group.reshards[at], group.values[at]
    told = _Reasons(view, reshard)
    producer = view.program.values[value].producer
    before = costing.skipped
    changes = list(candidates(view, group, told.causes, told.rivals))
    alternatives = tuple(_alternatives(view, changes, value, costing))
    return CollectiveExplanation(
        group.indices[at],
        group.indices,
        reshard.step.kind,
        view.mesh.axis_names(reshard.step.axes),
        reshard.step.bytes,
        reshard.times,
        view.seconds(reshard),
        view.hidden(reshard),
        view.title(value),
        str(view.program.values[value].type),
        view.title(value) if producer is None else view.origins.operation(producer),
        tuple(view.uses(reshard)),
        tuple(dict.fromkeys(told.reasons)),
        tuple(told.decisions),
        alternatives,
        costing.skipped - before,
        costing.obstacles(changes),
    )


def _alternatives(
    view: PlanView, changes: Iterable[Candidate], value: int, costing: Costing
) -> Iterator[Alternative]:
    """Changes that matter for a collective, estimated, each result once; the best first.

    Args:
      view: of the plan.
      changes: to try.
      value: that the collective moves.
      costing: of alternatives.
    """
    plan = view.done.estimate
    found: dict[int, Alternative] = {}  # by the identity of what `costing` holds
    for candidate in changes:
        costed = costing.cost(candidate)
        if costed is None or id(costed) in found:
            continue
        lowering, estimate = costed
        kept = lowering.plans[lowering.graph.value_class[value]]
        steps = [*kept.steps, *(step for _, steps in kept.reshards for step in steps)]
        found[id(costed)] = Alternative(
            candidate.text,
            tuple(
                show_step(view.mesh.axis_names(step.axes), step.kind, step.bytes)
                for step in steps
                if step.is_collective
            ),
            estimate.step_time,
            estimate.peak_memory,
            estimate.fits,
            estimate.step_time - plan.step_time,
            estimate.peak_memory - plan.peak_memory,
        )
    yield from sorted(found.values(), key=lambda a: (not a.fits, a.step_time, a.peak_memory))


class _Reasons:
    """Why a reshard is made: in words, with the nodes and decisions to blame."""

    def __init__(self, view: PlanView, reshard: Reshard) -> None:
        self.view = view
        self.origins = view.origins
        self.value = view.moved(reshard)
        self.reasons: list[str] = []
        self.causes: list[Node] = []
        self.rivals: list[Node] = []
        self.decisions: list[Decision] = []
        for axis in reshard.step.axes:
            if reshard.step.collective.reduces:
                self._sum(reshard, axis)
            elif reshard.step.send is not None:
                self._halo(reshard, axis)
            elif reshard.use is None:
                self._made(reshard, axis)
            else:
                self._needed(reshard, axis)

    def _sum(self, reshard: Reshard, axis: int) -> None:
        producer = self.view.program.values[self.value].producer
        assert producer is not None
        name = self.view.mesh.names[axis]
        kept = self.view.plan(self.value).layout
        for op, factor in self._summing(producer, axis):
            verb = "sums" if op.combine == "add" else f"takes the {op.combine}"
            text = f"{self.origins.operation(op.index)} {verb} over {self._summed(op, factor)}"
            self.reasons.append(f"{text}, which is sharded along {name}")
            self._blame(("op", op.index, factor), axis)
        if reshard.step.kind == REDUCE_SCATTER.name:
            node: Node = ("value", self.value, reshard.step.dim)
            if axis in kept[reshard.step.dim]:
                self.reasons.append(
                    f"the sum is kept sharded along {name} on dim {reshard.step.dim}"
                )
                self._decide(node, axis)

    def _summing(self, producer: int, axis: int) -> Iterator[tuple[Operation, int]]:
        """The operations whose factors make a value unreduced over an axis."""
        lowering, program = self.view.lowering, self.view.program
        seen, queue = {producer}, [producer]
        while queue:
            op = program.operations[queue.pop()]
            if axis in lowering.forms[lowering.graph.op_class[op.index]].sums:
                for factor, made in enumerate(op.rule.factors):
                    if made.kind == "reduction" and axis in self.origins.axes(
                        ("op", op.index, factor)
                    ):
                        yield op, factor
            for value in op.operands:
                source = program.values[value].producer
                if axis in self.view.plan(value).unreduced and source not in seen:
                    assert source is not None
                    seen.add(source)
                    queue.append(source)

    def _summed(self, op: Operation, factor: int) -> str:
        """A factor by the operand dimension that has it: `dim 1 of x`."""
        for number, tensor in enumerate(op.rule.operands):
            for dim, made_of in enumerate(tensor):
                if factor in made_of:
                    return f"dim {dim} of {self.view.title(op.operands[number])}"
        return f"factor {factor}"

    def _halo(self, reshard: Reshard, axis: int) -> None:
        send = reshard.step.send
        assert reshard.use is not None and send is not None
        distance = {b - a for a, b in send.pairs}
        sides = {1: "the shard before its own", -1: "the shard after its own"}
        whose = sides.get(distance.pop(), "") if len(distance) == 1 else ""
        self.reasons.append(
            f"{self.origins.operation(reshard.use[0])} is sharded along "
            f"{self.view.mesh.names[axis]} on dim {reshard.step.dim}, and of "
            f"{whose or 'another shard'} each device needs {send.size} more"
        )
        self._blame(("value", self.value, reshard.step.dim), axis)

    def _made(self, reshard: Reshard, axis: int) -> None:
        """Explains a value that is produced in another layout than its own."""
        program = self.view.program
        v = program.values[self.value]
        assert v.producer is not None
        op, dim, name = (
            program.operations[v.producer],
            reshard.step.dim,
            self.view.mesh.names[axis],
        )
        node: Node = ("value", self.value, dim)
        factor = op.rule.leading(op.rule.results[v.position][dim])
        where = self.origins.operation(op.index)
        why = ""
        if factor is not None:
            source: Node = ("op", op.index, factor)
            position = self.origins.took(source, axis)
            self._blame(source, axis)
            if position is not None:
                why = f": {self.origins.reason(node, axis, position)}"
        self.reasons.append(f"{where} makes it sharded along {name} on dim {dim}, not kept so{why}")
        self._exchanged(reshard, axis)

    def _needed(self, reshard: Reshard, axis: int) -> None:
        """Explains a use that needs a value in another layout than its own."""
        assert reshard.use is not None
        dim, name = reshard.step.dim, self.view.mesh.names[axis]
        kept = f"it is kept sharded along {name} on dim {dim}"
        self._blame(("value", self.value, dim), axis)
        whys: dict[str, None] = {}
        for index, number in self.view.users(reshard):
            whys[self._why(index, number, dim, axis)] = None
        self.reasons += [f"{kept}, and {why}" for why in whys]
        self._exchanged(reshard, axis)

    def _why(self, index: int, number: int, dim: int, axis: int) -> str:
        """Why an operation does not take an operand sharded along an axis on a dimension."""
        op, where = self.view.program.operations[index], self.origins.operation(index)
        made_of = op.rule.operands[number][dim]
        if reason := replication_reason(op, made_of):
            return f"{where} requires replication of that dimension: {reason}"
        factor = op.rule.leading(made_of)
        name = self.view.mesh.names[axis]
        if factor is None:
            return f"{where} requires replication of that dimension"
        node: Node = ("op", index, factor)
        if axis in self.origins.axes(node):
            return f"{where} adds up sums that are outstanding over {name}, once for all of them"
        other = next(
            (f for f in range(len(op.rule.factors)) if axis in self.origins.axes(("op", index, f))),
            None,
        )
        if other is not None:
            rival: Node = ("op", index, other)
            self.rivals.append(rival)
            self._decide(rival, axis)
            return f"{where} uses {name} on {factor_place(op.rule, other)}"
        position = self.origins.took(("value", self.value, dim), axis)
        if position is None:
            return f"{where} requires its replication"
        return f"{where} did not take {name}: {self.origins.reason(node, axis, position)}"

    def _exchanged(self, reshard: Reshard, axis: int) -> None:
        if reshard.step.kind == ALL_TO_ALL.name:
            name = self.view.mesh.names[axis]
            self.reasons.append(f"{name} splits dim {reshard.step.split} there")

    def _blame(self, node: Node, axis: int) -> None:
        if node not in self.causes:
            self.causes.append(node)
        self._decide(node, axis)

    def _decide(self, node: Node, axis: int) -> None:
        kind, index, place = node
        if kind == "value":
            where = f"dim {place} of {self.view.title(index)}"
        else:
            rule = self.view.program.operations[index].rule
            where = f"{factor_place(rule, place)} of {self.origins.operation(index)}"
        decision = self.origins.decision(node, axis, where)
        if decision is not None:
            known = ((d.where, d.axis, d.position) for d in self.decisions)
            if (decision.where, decision.axis, decision.position) not in known:
                self.decisions.append(decision)


def summary_line(view: PlanView, number: int) -> str:
    """A collective of a value in one line: what, how large, and for which operations."""
    reshard = view.done.spmd.collective_steps[number]
    uses = view.uses(reshard)
    more = f" and {len(uses) - 1} more" if len(uses) > 1 else ""
    kept = "as it is made" if reshard.use is None else f"for {uses[0]}{more}"
    times = f" x{reshard.times}" if reshard.times > 1 else ""
    return f"#{number} {view.shown(reshard)}{times}, {kept}"
