"""Unfolding: the lowering of a folded program, written out operation for operation."""

from __future__ import annotations

from partita.analysis import Window
from partita.program.blocks import Barrier, Block, Branch, Loop
from partita.program.ir import TensorType
from partita.spmd.instructions import Buffer, Case, Hold, Instruction, Reshard, Run, Section, While
from partita.spmd.lower import Lowering, ValuePlan
from partita.spmd.program import SpmdProgram
from partita.spmd.steps import Step
from partita.tiling import Layout, Need, local_type


def unfold(lowering: Lowering) -> SpmdProgram:
    """Writes a lowering of the folded program out, operation for operation."""
    return _Unfolding(lowering).run()


class _Unfolding:
    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.graph = lowering.graph
        self.program = lowering.graph.program
        self.mesh = lowering.mesh
        self.buffers: list[Buffer] = []
        self.instructions: list[Instruction] = []
        self.kept: dict[int, int] = {}
        self.resharded: dict[tuple[int, Need, Window], int] = {}
        self.seen: set[tuple[int, Need]] = set()
        self.windows: dict[tuple[int, int, int], Window] = {}
        self.carried: list[int] = []
        """Buffers of what the innermost loop carries."""

    def run(self) -> SpmdProgram:
        program = self.program
        self._number_windows()
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
            tuple(self.buffers),
            tuple(self.instructions),
            arguments,
            tuple(self.kept[v] for v in program.results),
            tuple(layouts),
            tuple(self._plan(v).layout for v in program.results),
            lowering=self.lowering,
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
                self._reshard_ahead(item)
                self._loop(item)
            else:
                self._reshard_ahead(item)
                self._branch(item)

    def _barrier(self, barrier: Barrier) -> None:
        inputs = tuple(self._input(part, 0) for part in barrier.parts)
        made = [self._make(part) for part in barrier.parts]
        self.instructions.append(Hold(barrier, inputs, tuple(m[0] for m in made)))
        for part, outputs in zip(barrier.parts, made, strict=True):
            self._keep(part, outputs)

    def _reshard_ahead(self, item: Loop | Branch) -> None:
        """Reshards values defined outside of a loop or branch, ahead of it, for uses inside.

        Those that are gathered in each iteration of a loop inside are left for its body.
        """
        around = self.program.around(self.program.region_of(item))
        for op in item.operations():
            for number, value in enumerate(self.program.operations[op].operands):
                if value in self.kept and self._window(value, op, number).body in around:
                    self._input(op, number)

    def _loop(self, loop: Loop) -> None:
        carries = [carry for carry in loop.carries if carry is not None]
        inputs = tuple(self._input(carry, 0) for carry in carries)
        made = [self._make(carry) for carry in carries]
        outer = self.instructions
        condition = self._section(carries, made, 0, loop.condition, [(loop.choose, 0)])
        passed_on = [(carry, 1) for carry in carries]
        around, self.carried = self.carried, [each[1] for each in made]
        body = self._section(carries, made, 1, loop.body, passed_on)
        self.instructions, self.carried = outer, around
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
        results: list[tuple[int, int]],
    ) -> Section:
        """Returns the section of a condition or body.

        Args:
          carries: the operations of the carried values.
          made: their buffers.
          place: the index of the buffers that are the arguments.
          block: the block to unfold.
          results: its results, as (operation that reads one, operand number).
        """
        self.instructions = []
        for carry, m in zip(carries, made, strict=True):
            self._keep_one(carry, m, place)
        self._block(block)
        ends = tuple(self._input(op, number) for op, number in results)
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
        """Returns the buffer that an operation reads, resharded if it has to be."""
        value = self.program.operations[op].operands[number]
        need = self.lowering.forms[self.graph.op_class[op]].need(number)
        plan = self._plan(value)
        if need == (plan.layout, ()):
            return self.kept[value]
        window = self._window(value, op, number)
        key = (value, need, window)
        if key not in self.resharded:
            again = (value, need) in self.seen or window.body > 0
            self.seen.add((value, need))
            steps = dict(plan.reshards)[need]
            self.resharded[key] = self._walk(
                value, self.kept[value], steps, again, (op, number), window
            )
        return self.resharded[key]

    def _window(self, value: int, op: int, number: int) -> Window:
        return self.windows.get((value, op, number), Window(0))

    def _make(self, op: int) -> tuple[int, ...]:
        """Adds buffers for the results of an operation, in the layouts in which it makes them."""
        form = self.lowering.forms[self.graph.op_class[op]]
        results = self.program.operations[op].results
        return tuple(self._buffer(v, lay) for v, lay in zip(results, form.makes, strict=True))

    def _keep(self, op: int, made: tuple[int, ...]) -> None:
        for place in range(len(made)):
            self._keep_one(op, made, place)

    def _keep_one(self, op: int, made: tuple[int, ...], place: int) -> None:
        """Reshards one result of an operation to the layout in which it is stored."""
        value = self.program.operations[op].results[place]
        steps = self._plan(value).steps
        self.kept[value] = self._walk(value, made[place], steps, False, None, Window(0))

    def _number_windows(self) -> None:
        analysis = self.graph.analysis
        for index, between in self.lowering.regathered.items():
            for member in self.graph.values[index].members:
                uses, windows = analysis.uses[member], analysis.windows[between][member]
                for (op, number), window in zip(uses, windows, strict=True):
                    self.windows[member, op, number] = window

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
        window: Window,
    ) -> int:
        times, body = self.program.defined_times(value) * window.runs, window.body
        after = self._latest() if body else None
        for step in steps:
            output = self._add(value, step.after)
            self.instructions.append(Reshard(step, buffer, output, again, times, use, body, after))
            buffer, again, after = output, False, None
        return buffer

    def _latest(self) -> int | None:
        """Returns a buffer of this iteration: of the latest reshard that waits for one, else the
        smallest that the loop carries; None if it carries nothing.

        Reshards take turns anyway, and those that wait for different buffers are not merged.
        """
        for item in reversed(self.instructions):
            if isinstance(item, Reshard) and item.body:
                return item.output
        return min(self.carried, key=self._bytes, default=None)

    def _bytes(self, buffer: int) -> int:
        return self.buffers[buffer].type.bytes
