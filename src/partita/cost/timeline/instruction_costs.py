"""Cost of every instruction of a program: that of its class, divided among the members.

The cost model prices classes, and what several collectives save or lose together. Here each
instruction gets its share of all that, so that the sum over a step is the estimate again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from partita.cost.estimate import Estimate
from partita.cost.model import CostModel
from partita.spmd import SpmdProgram
from partita.spmd.instructions import Reshard
from partita.spmd.manual_collectives import collectives_inside
from partita.spmd.steps import Step
from partita.tiling import Need


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Cost of one execution of an instruction, or of one part of it. Links by number."""

    name: str
    source: str
    op: int | None
    collective: int | None
    times: int
    """Number of executions per step."""
    compute: float = 0.0
    exposed: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Seconds that compute waits for each link."""
    hidden: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Seconds on each link under other work."""
    sums: bool = False
    """True if it moves a value that was just made; False if it moves one that is needed next."""


@dataclasses.dataclass(frozen=True)
class _Kind:
    """All moves of a value class to one need, or to its stored layout if `need` is None."""

    index: int
    need: Need | None
    step: Step
    body: int
    """The loop body in which it runs, as the cost model knows it; 0 if none."""


class InstructionCosts:
    """Costs of every instruction of one program."""

    def __init__(self, spmd: SpmdProgram, model: CostModel, estimate: Estimate) -> None:
        self._spmd = spmd
        self._model = model
        self._estimate = estimate
        self._graph = spmd.lowering.graph
        self._cost = model.cost(spmd.lowering)
        self._numbers = {id(each): n for n, each in enumerate(spmd.collective_steps)}
        self._inside = len(self._numbers)
        self._known: dict[tuple[_Kind, bool], tuple[dict[int, float], dict[int, float]]] = {}

    @cached_property
    def links(self) -> tuple[str, ...]:
        """Names of the links: the network, and for a torus the axis."""
        network, found = self._model.interconnect, dict[int, str]()
        for name, parts in zip(network.mesh.names, network.parts, strict=True):
            for part in parts:
                own = part.network.topology == "torus"
                found[part.link] = f"{part.network.name} {name}" if own else part.network.name
        return tuple(found.get(link, "link") for link in range(network.links))

    def ran(self, op: int) -> Iterator[Seconds]:
        """Yields the costs of running an operation: its own, then those of collectives inside."""
        program, model = self._spmd.program, self._model
        index, operation = self._graph.op_class[op], program.operations[op]
        form = self._spmd.form(op)
        times, compute = model.compute.times[index], float(self._cost.ops[index])
        moves, hidden = model.offload.of_class(index, form)
        host = model.interconnect.links
        if compute or moves:
            yield Seconds(
                *(operation.title, operation.source, op, None, operation.times),
                compute=compute / times if times else 0.0,
                exposed={host: (1 - hidden) * moves},
                hidden={host: hidden * moves},
            )
        for place, inner in enumerate(collectives_inside(operation, form, self._spmd.mesh)):
            axes = tuple(self._spmd.mesh.axis(name) for name in inner.axes)
            exposed = dict(model.interconnect.by_link(inner.kind, axes, inner.bytes))
            number = self._first_inside[op] + place
            runs = operation.times * inner.times
            yield Seconds(inner.kind, inner.source, op, number, runs, exposed=exposed)

    @cached_property
    def _first_inside(self) -> Mapping[int, int]:
        """Number of the first collective inside every operation that has some."""
        found, number = dict[int, int](), self._inside
        for op in self._spmd.operations_in_order():
            operation = self._spmd.program.operations[op]
            found[op] = number
            number += len(operation.work.collectives) if operation.work else 0
        return found

    def moved(self, item: Reshard) -> Seconds:
        """Returns the cost of one step of a reshard."""
        kind, program = self._kind(item), self._spmd.program
        value = self._spmd.buffers[item.input].value
        exposed, hidden = self._seconds(kind, item.again)
        producer = program.values[value].producer
        source = "" if producer is None else program.operations[producer].source
        number = self._numbers.get(id(item))
        compute = 0.0
        if number is not None:
            compute = self._cost.table.costs[self._cost.moving[kind.index]].compute
            compute /= self._moves[kind.index]
        name = f"{item.step.kind} {program.describe(value)}"
        return Seconds(
            name, source, producer, number, item.times, compute, exposed, hidden, item.use is None
        )

    def _kind(self, item: Reshard) -> _Kind:
        lowering, use = self._spmd.lowering, item.use
        index = self._graph.value_class[self._spmd.buffers[item.input].value]
        need, body = None, self._model.loops.body_of(index)
        if use is not None:
            need = lowering.forms[self._graph.op_class[use[0]]].need(use[1])
            body = self._captured_by(index, use) if item.body else body
        return _Kind(index, need, item.step, body)

    def _captured_by(self, index: int, use: tuple[int, int]) -> int:
        """Returns the loop body in which the first member of a value class is gathered for a use of
        any member."""
        of_class = self._graph.op_class[use[0]], use[1]
        between = self._spmd.lowering.regathered[index]
        uses = self._graph.values[index].uses
        return next(u.windows[between].body for u in uses if (u.op, u.number) == of_class)

    @cached_property
    def _moves(self) -> Counter[int]:
        """Number of collectives of every value class per step."""
        found: Counter[int] = Counter()
        for each in self._spmd.collective_steps:
            found[self._kind(each).index] += each.times
        return found

    def _seconds(self, kind: _Kind, again: bool) -> tuple[dict[int, float], dict[int, float]]:
        """Returns the seconds that compute waits for each link, and those under other work."""
        key = kind, again
        if key not in self._known:
            exposed, hidden = self._alone(kind)
            if not again or kind.body != self._model.loops.body_of(kind.index):
                self._wait(kind, exposed, hidden)
            if not again:
                self._together(kind, exposed, hidden)
            self._known[key] = exposed, hidden
        return self._known[key]

    def _alone(self, kind: _Kind) -> tuple[dict[int, float], dict[int, float]]:
        """Returns the same seconds, before combining and loops change them."""
        beside, waiting = self._model.links_seconds((kind.step,))
        share = self._share(kind)
        exposed, hidden = waiting + beside * (1 - share), beside * share
        return dict(enumerate(exposed.tolist())), dict(enumerate(hidden.tolist()))

    def _share(self, kind: _Kind) -> float:
        """Returns the share of such moves that overlaps with other work."""
        plan = self._spmd.lowering.plans[kind.index]
        return self._model.hidden_share(kind.index, plan, kind.need)

    def _wait(self, kind: _Kind, exposed: dict[int, float], hidden: dict[int, float]) -> None:
        """Exposes what its loop has no time to hide."""
        longest, shares = self._excess
        if share := shares.get(kind.body, 0.0):
            exposed[longest] += share * hidden[longest]
            for link in hidden:
                hidden[link] *= 1 - share

    def _together(self, kind: _Kind, exposed: dict[int, float], hidden: dict[int, float]) -> None:
        """Subtracts what combining saves."""
        parts = list(self._model.combining.parts(kind.index, kind.step, self._share(kind)))
        runs = sum(part[1] for part in parts)
        for group, of_group, _, beside in parts:
            fewer, latency = self._combined.get(group, (0.0, {}))
            total = sum(latency.values())
            for link, seconds in latency.items() if total else ():
                under = beside * seconds / total
                exposed[link] -= fewer * (of_group * seconds - under) / runs
                hidden[link] = max(hidden[link] - fewer * under / runs, 0.0)

    @cached_property
    def _combined(self) -> Mapping[int, tuple[float, dict[int, float]]]:
        """Share of each latency that combining saves, and the latencies by link, by group."""
        return self._model.combining.shares(self._cost.parts)

    @cached_property
    def _excess(self) -> tuple[int, Mapping[int, float]]:
        """Link that loops wait for, and by loop body the share that it does not hide."""
        cost = self._cost
        found = list(self._model.loops.by_body(cost.ops, cost.moving, cost.table, cost.captured))
        over = [sum(links) for links in zip(*(each[2] for each in found), strict=True)]
        longest = over.index(max(over)) if over else 0
        return longest, {body: share for body, share, _ in found}
