"""A mesh axis as time: which instructions of an SPMD program run once for each place along it.

A program that is split along one axis runs on as many devices. Its work can as well be done by one
device, one place after the other: a loop whose counter is the coordinate along the axis. In this
loop an all_reduce along the axis is a sum that is carried from iteration to iteration, a value
split along the axis is a stack of what the iterations make, and whatever is equal at all places
stays outside, before the loop or after it.

    x: 8 rows, split along time=4       for k in range(4):
    y = f(x)                                y = f(rows of x that belong to k)
    g = all_reduce(sum(y))                  g += sum(y)
    w = w - g                           w = w - g

That is one loop only if nothing inside needs what comes after it, such as a mean over the whole
batch that each example is divided by. A program with such a *coupling* is no loop, or each place
takes its own sum for N times it, as if its examples were the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from partita.program.collectives import ALL_GATHER, ALL_REDUCE
from partita.spmd.instructions import Case, Hold, Instruction, Reshard, Run, Section, While, inside
from partita.spmd.program import SpmdProgram


@dataclasses.dataclass(frozen=True)
class TimeLoop:
    """The instructions of a program that is split along one axis only, as one loop over it."""

    before: tuple[Instruction, ...]
    """Instructions that the loop needs, and that do not depend on it."""
    body: tuple[Instruction, ...]
    """Instructions that run at every place. A sum over places, if it is among them, stands for N
    times what the place itself has."""
    after: tuple[Instruction, ...]
    sums: tuple[Reshard, ...]
    """All-reduces of what the body makes: sums that are carried."""
    stacks: tuple[tuple[int, int, int], ...]
    """Buffers of which every place makes a part: the part, the dimension in which parts are
    stacked, and the stack, which for a result of the program has the same number."""
    kept: tuple[int, ...]
    """Buffers that the body makes equal in every iteration, and that are read after it; the mean of
    what iterations make, if they are `apart`."""
    apart: bool
    """True if each place takes its own sum for that of all, where it needs one."""


@dataclasses.dataclass(frozen=True)
class Coupling:
    """Why a program is no single loop: a step inside needs what all places make together."""

    buffer: int
    """The buffer that all places make together."""
    reader: Instruction
    """The instruction that reads it at every place."""


def time_loop(spmd: SpmdProgram, apart: bool = False) -> TimeLoop | Coupling:
    """Returns a program that is split along one axis as one loop, or what couples its places.

    Args:
      spmd: the program.
      apart: whether each place takes N times its own sum, where it needs that of all places.
    """
    return _Division(spmd, apart).run()


class _Division:
    """Divides the instructions of a program into those before, inside and after the loop."""

    def __init__(self, spmd: SpmdProgram, apart: bool) -> None:
        self.spmd, self.apart = spmd, apart
        self.split = {
            buffer
            for buffer, layout in zip(spmd.arguments, spmd.argument_layouts, strict=True)
            if any(layout)
        }
        """Buffers of arguments of which each place has a part."""
        self.inner: set[int] = set()
        """Buffers that the body makes."""
        self.late: dict[int, Instruction] = {}
        """Buffers that are known after the loop only, with what makes them."""
        self.repeated: dict[int, Instruction] = {}
        """Late buffers that each place makes, too, from sums of its own."""
        self.means: set[int] = set()
        """Late buffers that each place makes, and of which the mean is read after the loop."""
        self.body: list[Instruction] = []
        self.outer: list[Instruction] = []
        self.sums: list[Reshard] = []
        self.stacks: list[tuple[int, int, int]] = []

    def run(self) -> TimeLoop | Coupling:
        for item in self.spmd.instructions:
            coupling = self._place(item)
            if coupling is not None:
                return coupling
        self._sink()
        before, after = self._around()
        stacks = (*self.stacks, *self._split_results())
        kept = self._kept(after, {stack for _, _, stack in stacks})
        apart = bool(self.repeated or self.means)
        return TimeLoop(before, tuple(self.body), after, tuple(self.sums), stacks, kept, apart)

    def _place(self, item: Instruction) -> Coupling | None:
        """Puts one instruction inside or outside of the loop."""
        reads, makes = _reads(item), _makes(item)
        repeated = self._is_repeated(item) and not self._is_whole(item)
        late = next((b for b in reads if b in self.late), None)
        if repeated and late is not None and not all(map(self._repeat, reads)):
            return Coupling(late, item)
        if not repeated:
            self.outer.append(item)
            self.late.update(dict.fromkeys(makes if late is not None else (), item))
        elif isinstance(item, Reshard) and item.step.is_collective:
            self.late[item.output] = item
            if item.step.kind == ALL_REDUCE.name:
                self.sums.append(item)
            elif item.step.kind == ALL_GATHER.name:
                self.stacks.append((item.input, item.step.dim, item.output))
            else:  # neighbours, or a sum of which each place keeps a part
                return Coupling(item.input, item)
        else:
            coupled = _collective_inside(item)
            if coupled is not None:
                if not self.apart or coupled.step.kind != ALL_REDUCE.name:
                    return Coupling(coupled.output, coupled)
                self._average(item)
            self.body.append(item)
            self.inner.update(b for b in makes if b not in self.means)
        return None

    def _average(self, item: Instruction) -> None:
        """Notes what a loop with sums inside makes that is no part of a place: its mean is late."""
        lowering, values = self.spmd.lowering, self.spmd.program.values
        for buffer in map(self.spmd.buffers.__getitem__, _makes(item)):
            plan = lowering.plans[lowering.graph.value_class[buffer.value]]
            if buffer.type == values[buffer.value].type and not plan.unreduced:
                self.means.add(buffer.index)
                self.late[buffer.index] = item

    def _repeat(self, buffer: int) -> bool:
        """Makes a buffer at each place that all places make together; returns whether it can."""
        if buffer not in self.late or buffer in self.repeated or buffer in self.means:
            return True
        item = self.late[buffer]
        if not self.apart or (isinstance(item, Reshard) and item.step.kind != ALL_REDUCE.name):
            return False
        self.repeated.update(dict.fromkeys(_makes(item), item))
        return isinstance(item, Reshard) or all(map(self._repeat, _reads(item)))

    def _is_repeated(self, item: Instruction) -> bool:
        """Returns whether an instruction differs from place to place, or reads what does."""
        if any(b in self.inner or b in self.split for b in _reads(item)):
            return True
        return any(
            (isinstance(each, Run) and bool(self.spmd.form(each.op).axes))
            or (isinstance(each, Reshard) and bool(each.step.axes))
            for each in inside([item])
        )

    def _is_whole(self, item: Instruction) -> bool:
        """Returns whether an instruction only puts an argument together that is whole before."""
        return (
            isinstance(item, Reshard)
            and item.step.kind == ALL_GATHER.name
            and item.input in self.split
        )

    def _sink(self) -> None:
        """Moves what is larger than all that it is made of to its only readers, in the loop.

        A number that is repeated for every example is not kept for all of them. Only what kernels
        compute as they read it moves: it costs nothing to have it in each iteration.
        """
        read_outside = set(self.spmd.results)
        places = {id(item): n for n, item in enumerate(self.spmd.instructions)}
        sunk: list[Instruction] = []
        stay: list[Instruction] = []
        for item in reversed(self.outer):
            makes = _makes(item)
            if (
                isinstance(item, Run)
                and self.late.keys().isdisjoint(makes)
                and read_outside.isdisjoint(makes)
                and self._grows(item)
            ):
                sunk.append(item)
            else:
                stay.append(item)
                read_outside.update(_reads(item))
        self.outer = stay[::-1]
        again = {id(item): item for item in self.repeated.values()}.values()
        self.body = sorted([*self.body, *sunk, *again], key=lambda item: places[id(item)])
        self.inner.update(b for item in sunk for b in _makes(item))

    def _grows(self, item: Run) -> bool:
        if not self.spmd.program.operations[item.op].traits.fusible:
            return False
        buffers = self.spmd.buffers
        read = sum(buffers[b].type.bytes for b in item.inputs)
        return sum(buffers[b].type.bytes for b in item.outputs) > read

    def _around(self) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:
        """Returns what runs before the loop, because it needs it, and what runs after it."""
        needed = {b for item in self.body for b in _reads(item)} - self.late.keys()
        before: list[Instruction] = []
        after: list[Instruction] = []
        for item in reversed(self.outer):
            if needed.intersection(_makes(item)):
                before.append(item)
                needed.update(_reads(item))
            else:
                after.append(item)
        return tuple(before[::-1]), tuple(after[::-1])

    def _split_results(self) -> Iterator[tuple[int, int, int]]:
        """Yields the stacks of results of which each place makes a part."""
        for buffer, layout in zip(self.spmd.results, self.spmd.result_layouts, strict=True):
            dims = [dim for dim, axes in enumerate(layout) if axes]
            if dims and buffer in self.inner:
                yield buffer, dims[0], buffer

    def _kept(self, after: Iterable[Instruction], stacked: set[int]) -> tuple[int, ...]:
        """Returns the buffers that the body makes and that are read after it, but for stacks."""
        read = dict.fromkeys([*(b for item in after for b in _reads(item)), *self.spmd.results])
        made = self.inner.union(self.means) - stacked
        return tuple(b for b in read if b in made)


def _collective_inside(item: Instruction) -> Reshard | None:
    """Returns a collective inside of a loop or branch."""
    if not isinstance(item, While | Case):
        return None
    steps = (each for each in inside([item]) if isinstance(each, Reshard))
    return next((each for each in steps if each.step.is_collective), None)


def _reads(item: Instruction | Section) -> tuple[int, ...]:
    """Returns the buffers that an instruction reads, those read inside of it included."""
    if isinstance(item, Run | Hold):
        return item.inputs
    if isinstance(item, Reshard):
        return (item.input,)
    if isinstance(item, Section):
        return item.results
    if isinstance(item, Case):
        return (item.index, *_read_within(item.sections))
    return (*item.inputs, *_read_within((item.condition, item.body)))


def _read_within(sections: Iterable[Section]) -> Iterator[int]:
    """Yields the buffers from outside that sections read."""
    for section in sections:
        made = set(section.arguments)
        for item in section.instructions:
            yield from (b for b in _reads(item) if b not in made)
            made.update(_makes(item))
        yield from (b for b in section.results if b not in made)


def _makes(item: Instruction) -> tuple[int, ...]:
    """Returns the buffers that an instruction makes, for those after it."""
    return (item.output,) if isinstance(item, Reshard) else item.outputs
