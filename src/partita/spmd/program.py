"""The SPMD program: what every device runs, with its collectives explicit and in order."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cached_property

from partita.analysis.classes import episodes
from partita.mesh import Mesh
from partita.program.ir import Program, TensorType
from partita.spmd.lower import Lowering, OpForm, ValuePlan
from partita.spmd.reshard import Step, StepKind, local_type
from partita.tiling import Axes, Layout


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


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the plan.

    `bytes` is the payload per device: the larger of operand and result. `count` is how often it
    runs per step. `value` says what is moved and `source` the user's line that makes it.
    """

    kind: StepKind
    axes: tuple[str, ...]
    bytes: int
    count: int
    value: str
    source: str
    group: int
    """Number of devices that take part together."""
    dtype: str

    def __str__(self) -> str:
        return f"{self.kind}({','.join(self.axes)}) {self.bytes} B x{self.count}: {self.value}"


@dataclasses.dataclass(frozen=True)
class SpmdProgram:
    """The device-local program: buffers, and the instructions that fill them."""

    program: Program
    mesh: Mesh
    lowering: Lowering
    buffers: tuple[Buffer, ...]
    instructions: tuple[Run | Move, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_layouts: tuple[Layout, ...]
    result_layouts: tuple[Layout, ...]

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective, in program order."""
        found = []
        for item in self.instructions:
            if isinstance(item, Move) and item.step.is_collective:
                step, value = item.step, self.buffers[item.input].value
                producer = self.program.values[value].producer
                source = "" if producer is None else self.program.operations[producer].source
                found.append(
                    Collective(
                        step.kind,
                        self.mesh.axis_names(step.axes),
                        step.bytes,
                        1,
                        self.program.describe(value),
                        source,
                        self.mesh.size(step.axes),
                        step.before.dtype,
                    )
                )
        return tuple(found)

    def counts(self) -> dict[StepKind, int]:
        """Number of collectives of each kind."""
        return dict(Counter(c.kind for c in self.collectives))

    def form(self, op: int) -> OpForm:
        """How an operation runs on each device."""
        return self.lowering.forms[self.lowering.graph.op_class[op]]

    def sums(self, op: int) -> frozenset[int]:
        """Axes over which an operation's result is partial, passed-on sums included."""
        result = self.program.operations[op].results[0]
        return self.lowering.sums(self.lowering.graph.value_class[result])

    def __str__(self) -> str:
        lines = [f"spmd program {self.program.name} on {self.mesh} ({self.mesh.devices} devices)"]
        names = self.program.argument_names
        for name, index, layout in zip(names, self.arguments, self.argument_layouts, strict=True):
            lines.append(f"  b{index} = {name} : {self.buffers[index].type}{self._show(layout)}")
        for item in self.instructions:
            if isinstance(item, Run):
                op = self.program.operations[item.op]
                outputs = ", ".join(f"b{b}" for b in item.outputs)
                inputs = ", ".join(f"b{b}" for b in item.inputs)
                types = ", ".join(str(self.buffers[b].type) for b in item.outputs)
                lines.append(f"  {outputs} = {op.short}({inputs}) : {types}  {op.source}".rstrip())
            else:
                lines.append(self._show_move(item))
        for name, index, layout in zip(
            self.program.result_names, self.results, self.result_layouts, strict=True
        ):
            lines.append(f"  {name} = b{index}{self._show(layout)}")
        return "\n".join(lines)

    def _show_move(self, move: Move) -> str:
        step = move.step
        axes = ",".join(self.mesh.axis_names(step.axes))
        dims = "".join(
            f" {label}{d}" for label, d in (("dim ", step.dim), ("to ", step.split)) if d >= 0
        )
        size = f"  {step.bytes} B" if step.is_collective else ""
        again = "  (again)" if move.again else ""
        what = f"{step.kind}(b{move.input}, {axes}{dims})"
        return f"  b{move.output} = {what} : {step.after}{size}{again}"

    def _show(self, layout: Layout) -> str:
        if not any(layout):
            return ""
        dims = ("+".join(self.mesh.axis_names(axes)) or "-" for axes in layout)
        return f" ({', '.join(dims)})"


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
        self.instructions: list[Run | Move] = []
        self.kept: dict[int, int] = {}
        self.moved: dict[tuple[int, Layout, int], int] = {}
        self.seen: set[tuple[int, Layout]] = set()
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
        for op in program.operations:
            form = self.lowering.forms[self.graph.op_class[op.index]]
            inputs = tuple(
                self._arrive(v, need, self.episodes.get((v, op.index, number), 0))
                for number, (v, need) in enumerate(zip(op.operands, form.needs, strict=True))
            )
            made = [self._buffer(v, lay) for v, lay in zip(op.results, form.makes, strict=True)]
            self.instructions.append(Run(op.index, inputs, tuple(made)))
            for v, buffer in zip(op.results, made, strict=True):
                self.kept[v] = self._walk(v, buffer, self._plan(v).steps, False)
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

    def _number_episodes(self) -> None:
        if not self.regather:
            return
        for value in self.graph.values:
            if any(use.episode for use in value.uses):
                for member in value.members:
                    self._episodes_of(member)

    def _episodes_of(self, value: int) -> None:
        uses = self._uses[value]
        for (op, number), episode in zip(uses, episodes(uses), strict=True):
            self.episodes[value, op, number] = episode

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

    def _arrive(self, value: int, need: Layout, episode: int) -> int:
        plan = self._plan(value)
        if need == plan.layout:
            return self.kept[value]
        key = (value, need, episode)
        if key not in self.moved:
            again = (value, need) in self.seen
            self.seen.add((value, need))
            steps = dict(plan.moves)[need]
            self.moved[key] = self._walk(value, self.kept[value], steps, again)
        return self.moved[key]

    def _walk(self, value: int, buffer: int, steps: tuple[Step, ...], again: bool) -> int:
        for step in steps:
            output = self._add(value, step.after)
            self.instructions.append(Move(step, buffer, output, again))
            buffer, again = output, False
        return buffer


def spec(layout: Layout, mesh: Mesh) -> tuple[str | tuple[str, ...] | None, ...]:
    """A layout as the entries of a `PartitionSpec`, without trailing `None`s."""

    def entry(axes: Axes) -> str | tuple[str, ...] | None:
        names = mesh.axis_names(axes)
        return None if not names else names[0] if len(names) == 1 else names

    entries = [entry(axes) for axes in layout]
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)
