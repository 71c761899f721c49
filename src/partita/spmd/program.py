"""The SPMD program that every device runs, with explicit collectives, in order."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from partita.escape import printed
from partita.program.ir import Operation
from partita.spmd.instructions import Collective, LocalProgram, Reshard, Run, inside
from partita.spmd.lower import Lowering
from partita.spmd.manual_collectives import collectives_inside
from partita.spmd.show import show
from partita.tiling import OpForm


@dataclasses.dataclass(frozen=True, repr=False)
class SpmdProgram(LocalProgram):
    """A device-local program with the lowering that it was written out from; prints as text."""

    lowering: Lowering

    def reshards(self) -> Iterator[Reshard]:
        """Yields every resharding step in order, those inside of loops included."""
        return (item for item in inside(self.instructions) if isinstance(item, Reshard))

    def operations_in_order(self) -> Iterator[int]:
        """Yields every operation that runs, in order, those inside of loops included."""
        return (item.op for item in inside(self.instructions) if isinstance(item, Run))

    @cached_property
    def collective_steps(self) -> tuple[Reshard, ...]:
        """The resharding steps that are collectives, in program order."""
        return tuple(each for each in self.reshards() if each.step.is_collective)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective, in program order: one for each of `collective_steps`.

        After them come those that the program itself has inside of manual computations.
        """
        own = [self._collective(n, each) for n, each in enumerate(self.collective_steps)]
        return (*own, *self._inside(len(own)))

    def _inside(self, start: int) -> Iterator[Collective]:
        """Yields the collectives inside of manual computations, numbered from `start` on."""
        numbers = itertools.count(start)
        for op in (self.program.operations[number] for number in self.operations_in_order()):
            for own in collectives_inside(op, self.form(op.index), self.mesh):
                yield Collective(
                    kind=own.kind,
                    axes=own.axes,
                    bytes=own.bytes,
                    count=op.times * own.times,
                    value=self._exchanged(op),
                    source=own.source,
                    group=self.mesh.size(tuple(map(self.mesh.axis, own.axes))),
                    dtype=own.dtype,
                    index=next(numbers),
                )

    def _exchanged(self, op: Operation) -> str:
        """Returns in words what a collective of the program itself moves."""
        if op.traits.collective:
            return f"inside of a shard_map, of {self.program.describe(op.operands[0])}"
        return f"inside of {op.title} at {op.source}"

    def _collective(self, index: int, reshard: Reshard) -> Collective:
        step, value = reshard.step, self.buffers[reshard.input].value
        producer = self.program.values[value].producer
        return Collective(
            kind=step.kind,
            axes=self.mesh.axis_names(step.axes),
            bytes=step.bytes,
            count=reshard.times,
            value=self.program.describe(value),
            source="" if producer is None else self.program.operations[producer].source,
            group=self.mesh.size(step.axes),
            dtype=step.dtype,
            index=index,
            pairs=tuple(step.pairs(self.mesh)) if step.layouts or step.send else (),
        )

    def counts(self) -> dict[str, int]:
        """Returns the number of collectives of each kind in the program; loops count once."""
        return dict(Counter(c.kind for c in self.collectives))

    def form(self, op: int) -> OpForm:
        """Returns the form of an operation on each device."""
        return self.lowering.forms[self.lowering.graph.op_class[op]]

    def sums(self, op: int) -> frozenset[int]:
        """Returns the axes over which a result is made unreduced, those of operands included."""
        result = self.program.operations[op].results[0]
        return self.lowering.sums(self.lowering.graph.value_class[result])

    @printed
    def __repr__(self) -> str:
        return (
            f"<SpmdProgram {self.program.name} on {self.mesh}: "
            f"{len(self.program.operations)} operations, {len(self.collectives)} collectives>"
        )

    @printed
    def __str__(self) -> str:
        return show(self)
