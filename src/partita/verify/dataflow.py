"""Who makes and who reads the buffers of an SPMD program, and what they are passed on through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from partita.program.collectives import CollectiveKind
from partita.program.ir import bits
from partita.program.op_traits import UNKNOWN, Traits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import Case, Instruction, Section, While, inside

Item = Instruction | Section
Passes = Callable[["Dataflow", Run | Reshard, bool], bool]
"""Whether what reads a value hands it on: the flow, the reader, and whether the result has as many
elements."""


class Dataflow:
    """Makers and readers of each buffer, among some instructions of a program."""

    def __init__(self, spmd: SpmdProgram, instructions: Iterable[Instruction]) -> None:
        self.spmd = spmd
        self.items = list(inside(instructions))
        self.makers: dict[int, Run | Reshard] = {}
        self.readers: dict[int, list[Item]] = {}
        for item in self.items:
            for buffer in _read(item):
                self.readers.setdefault(buffer, []).append(item)
            if isinstance(item, Run | Reshard):
                self.makers.update(dict.fromkeys(made_by(item), item))

    def traits(self, item: Item) -> Traits:
        """Traits of an operation; of anything else, those of a kind without any."""
        return self.spmd.program.operations[item.op].traits if isinstance(item, Run) else UNKNOWN

    def moves(self, item: Item) -> bool:
        """Returns whether a step or an operation only says where elements are."""
        if isinstance(item, Reshard):
            return item.step.collective.moves
        traits = self.traits(item)
        return traits.rearranges or (traits.slices and not traits.reads_window)

    def bits(self, buffer: int) -> int:
        """Bits of an element of a buffer."""
        return bits(self.spmd.buffers[buffer].type.dtype)

    def elements(self, buffer: int) -> int:
        """Elements of a buffer."""
        return self.spmd.buffers[buffer].type.elements


class LoopBody(Dataflow):
    """The buffers of a loop's condition and body, inner loops and branches included."""

    def __init__(self, spmd: SpmdProgram, loop: While, trips: int) -> None:
        super().__init__(spmd, (*loop.condition.instructions, *loop.body.instructions))
        self.loop = loop
        self.trips = trips
        """How often the body runs."""

    def end_of(self, buffer: int, passes: Passes) -> tuple[Run, int] | None:
        """Follows a value that is read once, through what passes it on, to an operation.

        Returns:
          The operation, and the buffer that it reads the value from; None if there is no such one.
        """
        while len(reading := self.readers.get(buffer, [])) == 1:
            (item,) = reading
            if buffer in self.loop.body.results or not isinstance(item, Run | Reshard):
                return None
            made = made_by(item)[0]
            if not passes(self, item, self.elements(buffer) == self.elements(made)):
                return (item, buffer) if isinstance(item, Run) else None
            buffer = made
        return None

    def carries(self, before: int, after: int) -> bool:
        """Returns whether the loop carries `after` as the next `before`, and nothing reads either
        but the one operation that makes `after` of `before`."""
        arguments, results = self.loop.body.arguments, self.loop.body.results
        if before not in arguments or results.count(after) != 1 or before in results:
            return False
        place = arguments.index(before)
        tested = self.readers.get(self.loop.condition.arguments[place])
        alone = len(self.readers[before]) == 1 and not self.readers.get(after) and not tested
        return alone and results[place] == after


def loop_sums(
    spmd: SpmdProgram, kinds: Collection[CollectiveKind]
) -> Iterator[tuple[int, LoopBody]]:
    """Sums of some kinds that run in loops of a known length: the buffer of each, and the body."""
    for loop in inside(spmd.instructions):
        if not isinstance(loop, While) or loop.loop.trips in (None, 1):
            continue
        body = LoopBody(spmd, loop, loop.loop.trips)
        for item in loop.body.instructions:
            if isinstance(item, Reshard) and item.step.collective in kinds:
                yield item.output, body


def made_by(item: Run | Reshard) -> tuple[int, ...]:
    """The buffers that an operation or a step makes."""
    return item.outputs if isinstance(item, Run) else (item.output,)


def _read(item: Item) -> tuple[int, ...]:
    """The buffers that an instruction reads, or that a section ends with."""
    match item:
        case Reshard():
            return (item.input,)
        case Case():
            return (item.index,)
        case Section():
            return item.results
        case _:
            return item.inputs
