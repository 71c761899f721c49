"""The SPMD program: what every device runs, with its collectives explicit and in order."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from partita.analysis.classes import episodes
from partita.mesh import Mesh
from partita.program.blocks import Barrier, Block, Branch, Loop
from partita.program.ir import Program, TensorType
from partita.spmd.lower import Lowering, ValuePlan
from partita.spmd.reshard import Step, permutation
from partita.spmd.show import show
from partita.tiling import Axes, Layout, Need, OpForm, local_type


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """A device-local tensor: one piece of a value of the program."""

    index: int
    value: int
    type: TensorType


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A device runs one operation of the program on its pieces."""

    op: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """One step of a reshard."""

    step: Step
    input: int
    output: int
    again: bool
    """Repeats an earlier move of the same buffer on purpose, to save memory in between."""
    times: int
    """How often it runs per step of the program."""
    use: tuple[int, int] | None
    """The first use that it is for, as (operation, operand number); None on the way to the layout
    that the value is kept in."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """An optimization barrier around buffers."""

    barrier: Barrier
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Instructions of a loop or branch: what they start from and what they end with."""

    arguments: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class While:
    """A loop on every device; all devices go around equally often."""

    loop: Loop
    inputs: tuple[int, ...]
    condition: Section
    body: Section
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A choice between sections; all devices choose alike."""

    branch: Branch
    index: int
    sections: tuple[Section, ...]
    outputs: tuple[int, ...]


Instruction = Run | Move | Hold | While | Case


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the plan.

    `bytes` is the payload per device: the larger of operand and result. `count` is how often it
    runs per step. `value` says what is moved and `source` the user's line that makes it.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    value: str
    source: str
    group: int
    """Number of devices that take part together."""
    dtype: str
    """Element type of what is moved, as StableHLO names it."""
    index: int
    """Its number among the collectives of the plan."""
    pairs: tuple[tuple[int, int], ...] = dataclasses.field(default=(), repr=False)
    """Of a collective_permute that hands on whole pieces, which device sends to which."""

    def __str__(self) -> str:
        what = f"{self.kind}({','.join(self.axes)}) {self.bytes} B x{self.count}"
        return f"#{self.index} {what}: {self.value}"


@dataclasses.dataclass(frozen=True)
class SpmdProgram:
    """The device-local program: buffers, and the instructions that fill them."""

    program: Program
    mesh: Mesh
    lowering: Lowering
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_layouts: tuple[Layout, ...]
    result_layouts: tuple[Layout, ...]
    time: Callable[[Step], str] | None = dataclasses.field(default=None, repr=False, compare=False)
    """Says how long a collective takes, in print."""

    def moves(self) -> Iterator[Move]:
        """Every step of every reshard, those inside loops and branches included, in order."""
        return (item for item in inside(self.instructions) if isinstance(item, Move))

    @cached_property
    def exchanges(self) -> tuple[Move, ...]:
        """The moves that are collectives, in program order."""
        return tuple(move for move in self.moves() if move.step.is_collective)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective, in program order: one for each of `exchanges`.

        Behind them come those that the program itself has inside of `shard_map` regions.
        """
        own = [self._collective(number, move) for number, move in enumerate(self.exchanges)]
        return (*own, *self._inside(len(own)))

    def _inside(self, start: int) -> Iterator[Collective]:
        """The collectives inside of regions, numbered from `start` on."""
        numbers = itertools.count(start)
        runs = (item for item in inside(self.instructions) if isinstance(item, Run))
        for op in (self.program.operations[item.op] for item in runs):
            for exchange in op.work.exchanges if op.work else ():
                yield Collective(
                    kind=exchange.kind,
                    axes=exchange.axes,
                    bytes=exchange.bytes,
                    count=op.times * exchange.times,
                    value=f"inside of {op.title} at {op.source}",
                    source=exchange.source,
                    group=self.mesh.size(tuple(map(self.mesh.axis, exchange.axes))),
                    dtype=exchange.dtype,
                    index=next(numbers),
                )

    def _collective(self, index: int, move: Move) -> Collective:
        step, value = move.step, self.buffers[move.input].value
        producer = self.program.values[value].producer
        return Collective(
            kind=step.kind,
            axes=self.mesh.axis_names(step.axes),
            bytes=step.bytes,
            count=move.times,
            value=self.program.describe(value),
            source="" if producer is None else self.program.operations[producer].source,
            group=self.mesh.size(step.axes),
            dtype=step.before.dtype,
            index=index,
            pairs=tuple(permutation(self.mesh, *step.layouts)) if step.layouts else (),
        )

    def counts(self) -> dict[str, int]:
        """Number of collectives of each kind in the program; loops count once."""
        return dict(Counter(c.kind for c in self.collectives))

    def form(self, op: int) -> OpForm:
        """How an operation runs on each device."""
        return self.lowering.forms[self.lowering.graph.op_class[op]]

    def sums(self, op: int) -> frozenset[int]:
        """Axes over which an operation's result is partial, passed-on sums included."""
        result = self.program.operations[op].results[0]
        return self.lowering.sums(self.lowering.graph.value_class[result])

    def __str__(self) -> str:
        return show(self)


def inside(instructions: Iterable[Instruction]) -> Iterator[Instruction | Section]:
    """Instructions in order, with the sections of loops and branches and what is in them."""
    for item in instructions:
        yield item
        sections: tuple[Section, ...] = ()
        if isinstance(item, While):
            sections = item.condition, item.body
        elif isinstance(item, Case):
            sections = item.sections
        for section in sections:
            yield section
            yield from inside(section.instructions)


def unfold(lowering: Lowering, regather: bool = False) -> SpmdProgram:
    """Writes a lowering out, operation for operation.

    Args:
      lowering: of the folded program.
      regather: gather a value again for each run of uses that are far apart, instead of keeping
        the gathered copy in between.
    """
    return _Unfolding(lowering, regather).run()


class _Unfolding:
    def __init__(self, lowering: Lowering, regather: bool) -> None:
        self.lowering = lowering
        self.graph = lowering.graph
        self.program = lowering.graph.program
        self.mesh = lowering.mesh
        self.regather = regather
        self.buffers: list[Buffer] = []
        self.instructions: list[Instruction] = []
        self.kept: dict[int, int] = {}
        self.moved: dict[tuple[int, Need, int], int] = {}
        self.seen: set[tuple[int, Need]] = set()
        self.episodes: dict[tuple[int, int, int], int] = {}

    def run(self) -> SpmdProgram:
        program = self.program
        self._number_episodes()
        layouts = []
        for v in program.arguments:
            layout = self._plan(v).layout
            self.kept[v] = self._buffer(v, layout)
            layouts.append(layout)
        arguments = tuple(self.kept[v] for v in program.arguments)
        self._block(program.body)
        return SpmdProgram(
            program,
            self.mesh,
            self.lowering,
            tuple(self.buffers),
            tuple(self.instructions),
            arguments,
            tuple(self.kept[v] for v in program.results),
            tuple(layouts),
            tuple(self._plan(v).layout for v in program.results),
        )

    def _block(self, block: Block) -> None:
        for item in block.items:
            if isinstance(item, int):
                inputs = self._inputs(item)
                made = self._make(item)
                self.instructions.append(Run(item, inputs, made))
                self._keep(item, made)
            elif isinstance(item, Barrier):
                self._barrier(item)
            elif isinstance(item, Loop):
                self._move_ahead(item)
                self._loop(item)
            else:
                self._move_ahead(item)
                self._branch(item)

    def _barrier(self, barrier: Barrier) -> None:
        inputs = tuple(self._input(part, 0) for part in barrier.parts)
        made = [self._make(part) for part in barrier.parts]
        self.instructions.append(Hold(barrier, inputs, tuple(m[0] for m in made)))
        for part, outputs in zip(barrier.parts, made, strict=True):
            self._keep(part, outputs)

    def _move_ahead(self, item: Loop | Branch) -> None:
        """Moves what is defined outside of a loop or branch and needed otherwise inside."""
        for op in item.operations():
            for number, value in enumerate(self.program.operations[op].operands):
                if value in self.kept:
                    self._input(op, number)

    def _loop(self, loop: Loop) -> None:
        carries = [carry for carry in loop.carries if carry is not None]
        inputs = tuple(self._input(carry, 0) for carry in carries)
        made = [self._make(carry) for carry in carries]
        outer = self.instructions
        condition = self._section(carries, made, 0, loop.condition, [loop.predicate])
        body = self._section(carries, made, 1, loop.body, None)
        self.instructions = outer
        outputs = tuple(m[2] for m in made)
        self.instructions.append(While(loop, inputs, condition, body, outputs))
        for carry, m in zip(carries, made, strict=True):
            self._keep_one(carry, m, 2)

    def _section(
        self,
        carries: list[int],
        made: list[tuple[int, ...]],
        place: int,
        block: Block,
        results: list[int] | None,
    ) -> Section:
        self.instructions = []
        for carry, m in zip(carries, made, strict=True):
            self._keep_one(carry, m, place)
        self._block(block)
        if results is None:
            ends = tuple(self._input(carry, 1) for carry in carries)
        else:
            ends = tuple(self.kept[v] for v in results)
        return Section(tuple(m[place] for m in made), tuple(self.instructions), ends)

    def _branch(self, branch: Branch) -> None:
        (index,) = self._inputs(branch.choose)
        outer = self.instructions
        sections = []
        for number, block in enumerate(branch.branches):
            self.instructions = []
            self._block(block)
            ends = tuple(self._input(join, number) for join in branch.joins)
            sections.append(Section((), tuple(self.instructions), ends))
        self.instructions = outer
        made = [self._make(join) for join in branch.joins]
        outputs = tuple(m[0] for m in made)
        self.instructions.append(Case(branch, index, tuple(sections), outputs))
        for join, m in zip(branch.joins, made, strict=True):
            self._keep(join, m)

    def _inputs(self, op: int) -> tuple[int, ...]:
        return tuple(
            self._input(op, number) for number in range(len(self.program.operations[op].operands))
        )

    def _input(self, op: int, number: int) -> int:
        """The buffer that an operation reads, moved there if it has to be."""
        value = self.program.operations[op].operands[number]
        need = self.lowering.forms[self.graph.op_class[op]].need(number)
        plan = self._plan(value)
        if need == (plan.layout, ()):
            return self.kept[value]
        key = (value, need, self.episodes.get((value, op, number), 0))
        if key not in self.moved:
            again = (value, need) in self.seen
            self.seen.add((value, need))
            steps = dict(plan.moves)[need]
            self.moved[key] = self._walk(value, self.kept[value], steps, again, (op, number))
        return self.moved[key]

    def _make(self, op: int) -> tuple[int, ...]:
        """Buffers for the results of an operation, as it makes them."""
        form = self.lowering.forms[self.graph.op_class[op]]
        results = self.program.operations[op].results
        return tuple(self._buffer(v, lay) for v, lay in zip(results, form.makes, strict=True))

    def _keep(self, op: int, made: tuple[int, ...]) -> None:
        for place in range(len(made)):
            self._keep_one(op, made, place)

    def _keep_one(self, op: int, made: tuple[int, ...], place: int) -> None:
        """Brings one result of an operation into the layout that it is kept in."""
        value = self.program.operations[op].results[place]
        self.kept[value] = self._walk(value, made[place], self._plan(value).steps, False, None)

    def _number_episodes(self) -> None:
        if not self.regather:
            return
        for value in self.graph.values:
            if any(use.episode for use in value.uses):
                for member in value.members:
                    uses = self._uses[member]
                    for (op, number), episode in zip(
                        uses, episodes(self.program, uses), strict=True
                    ):
                        self.episodes[member, op, number] = episode

    @cached_property
    def _uses(self) -> list[list[tuple[int, int]]]:
        return self.program.uses()

    def _plan(self, value: int) -> ValuePlan:
        return self.lowering.plans[self.graph.value_class[value]]

    def _buffer(self, value: int, layout: Layout) -> int:
        type_ = local_type(self.program.values[value].type, layout, self.mesh)
        return self._add(value, type_)

    def _add(self, value: int, type_: TensorType) -> int:
        self.buffers.append(Buffer(len(self.buffers), value, type_))
        return len(self.buffers) - 1

    def _walk(
        self,
        value: int,
        buffer: int,
        steps: tuple[Step, ...],
        again: bool,
        use: tuple[int, int] | None,
    ) -> int:
        times = defined_times(self.program, value)
        for step in steps:
            output = self._add(value, step.after)
            self.instructions.append(Move(step, buffer, output, again, times, use))
            buffer, again = output, False
        return buffer


def defined_times(program: Program, value: int) -> int:
    """How often per step a value is defined, and so moved: loops multiply.

    What a loop hands out at its end is defined as often as the loop runs, not its body.
    """
    v = program.values[value]
    if v.producer is None:
        return 1
    op = program.operations[v.producer]
    if op.index in program.ends and v.position < 2:
        return program.operations[program.ends[op.index]].times
    return op.times


def entries(layout: Layout, mesh: Mesh) -> tuple[str | tuple[str, ...] | None, ...]:
    """A layout as one entry of a `PartitionSpec` for each dimension."""

    def entry(axes: Axes) -> str | tuple[str, ...] | None:
        names = mesh.axis_names(axes)
        return None if not names else names[0] if len(names) == 1 else names

    return tuple(entry(axes) for axes in layout)


def spec(layout: Layout, mesh: Mesh) -> tuple[str | tuple[str, ...] | None, ...]:
    """A layout as the entries of a `PartitionSpec`, without trailing `None`s."""
    found = list(entries(layout, mesh))
    while found and found[-1] is None:
        found.pop()
    return tuple(found)
