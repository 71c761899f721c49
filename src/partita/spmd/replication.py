"""Operations that require replication of a sharded dimension, and the bytes they gather."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partita.analysis import OpClass
from partita.escape import printed
from partita.program.ir import Operation, Program
from partita.spmd.lower import Lowering


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicatedUse:
    """An operation that cannot be split along a sharded dimension of a value.

    If it makes a value that is stored sharded, every device makes all of it and keeps its shard.
    """

    operation: str
    source: str
    """The user's line of the operation."""
    value: str
    """The first such value, in the user's words."""
    dim: int
    reason: str
    """Why the operation cannot be split there."""
    bytes: int
    """Bytes gathered for it, per device and step; 0 if an earlier operation gathered them."""
    count: int
    """Number of values for which this holds at this line."""
    made: bool
    """True if the operation makes the value, false if it reads it."""

    @printed
    def __str__(self) -> str:
        where = f"{self.operation} at {self.source}" if self.source else self.operation
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        what = f"dim {self.dim} of {self.value}{more}"
        if self.made:
            return f"{where} makes {what} replicated on every device: {self.reason}"
        cost = f"gathers {self.bytes} B" if self.bytes else "already gathered"
        return f"{where} requires replication of {what}, {cost}: {self.reason}"


def added(
    uses: Sequence[ReplicatedUse], before: Sequence[ReplicatedUse]
) -> tuple[ReplicatedUse, ...]:
    """Returns the uses that are new, ignoring changes in the bytes and the number of values."""
    known = set(map(_key, before))
    return tuple(use for use in uses if _key(use) not in known)


def replicated_uses(lowering: Lowering) -> tuple[ReplicatedUse, ...]:
    """Returns the operations that require replication, each source line once, in order."""
    found: dict[object, ReplicatedUse] = {}
    for use in _uses(lowering):
        known = found.get(_key(use))
        if known is not None:
            total, count = known.bytes + use.bytes, known.count + use.count
            use = dataclasses.replace(known, bytes=total, count=count)
        found[_key(use)] = use
    return tuple(found.values())


def _key(use: ReplicatedUse) -> object:
    return use.operation, use.source, use.dim, use.reason, use.made


def _uses(lowering: Lowering) -> Iterator[ReplicatedUse]:
    graph = lowering.graph
    program = graph.program
    concerned = [_concerned(lowering, op) for op in graph.ops]
    gathered: set[object] = set()
    for op in program.operations:
        if not concerned[graph.op_class[op.index]] or op.takes_apart:
            continue
        form = lowering.forms[graph.op_class[op.index]]
        told = False
        for number, value in enumerate(op.operands):
            plan, need = lowering.plans[graph.value_class[value]], form.need(number)
            if need[0] == plan.layout:
                continue
            steps = () if (value, need) in gathered else dict(plan.reshards)[need]
            for dim, axes in enumerate(plan.layout):
                reason = replication_reason(op, op.rule.operands[number][dim])
                if reason and not set(axes) <= set(need[0][dim]):
                    size = sum(s.bytes for s in steps if s.is_collective and s.dim == dim)
                    size *= program.defined_times(value)
                    told = True
                    gathered.add((value, need))
                    yield _use(program, op, value, dim, reason, size, made=False)
        for position, value in enumerate(op.results if not told else ()):
            kept, makes = lowering.plans[graph.value_class[value]].layout, form.makes[position]
            for dim, axes in enumerate(kept):
                reason = replication_reason(op, op.rule.results[position][dim])
                if reason and not set(axes) <= set(makes[dim]):
                    yield _use(program, op, value, dim, reason, 0, made=True)


def _concerned(lowering: Lowering, op: OpClass) -> bool:
    """Returns whether a class reads or makes a value in another layout than the stored one."""
    form, plans = lowering.forms[op.index], lowering.plans
    return any(
        plans[v].layout != layout
        for sides, layouts in ((op.operands, form.needs), (op.results, form.makes))
        for classes, layout in zip(sides, layouts, strict=True)
        for v in classes
    )


def _use(
    program: Program, op: Operation, value: int, dim: int, reason: str, size: int, made: bool
) -> ReplicatedUse:
    name = program.describe(value)
    if made and value in program.results:
        name = program.result_names[program.results.index(value)]
    return ReplicatedUse(op.title, op.source, name, dim, reason, size, 1, made)


def replication_reason(op: Operation, dimension: tuple[int, ...]) -> str:
    """Returns why an operation cannot be split along a dimension; empty if it can."""
    if not op.rule.known:
        return op.traits.reason or "no sharding rule is known"
    factor = op.rule.leading(dimension)
    if factor is None:
        return f"{op.short} requires replication of this dimension"
    return op.rule.factors[factor].reason
