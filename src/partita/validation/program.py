"""Walks a lowered program once, and derives the state of every buffer on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from partita.errors import LoweringError
from partita.program.ir import Operation, TensorType
from partita.spmd.instructions import Case, Hold, Instruction, Reshard, Run, Section, While
from partita.spmd.program import SpmdProgram
from partita.tiling import Layout
from partita.validation import steps
from partita.validation.operations import results_of
from partita.validation.state import Mismatch, State, expect, laid_out, local_shape


def validate(spmd: SpmdProgram) -> None:
    """Proves that a lowered program computes what the original does.

    Args:
      spmd: the program.

    Raises:
      LoweringError: it does not, or this cannot be proven. The message names the operation.
    """
    if spmd.mesh.devices > 1:
        _Walk(spmd).run()


class _Walk:
    def __init__(self, spmd: SpmdProgram) -> None:
        self.spmd = spmd
        self.program = spmd.program
        self.mesh = spmd.mesh
        self.states: dict[int, State] = {}
        """State of every buffer walked so far, by buffer."""
        self._known: dict[object, list[State]] = {}
        """Cache: operations that are alike, with equal operands -> results, since layers repeat."""

    def run(self) -> None:
        spmd = self.spmd
        layouts = zip(spmd.arguments, spmd.argument_layouts, strict=True)
        for name, (buffer, layout) in zip(self.program.argument_names, layouts, strict=True):
            with _Place(f"argument {name}"):
                self._hold(buffer, State(laid_out(layout, self.mesh)))
        self._instructions(spmd.instructions)
        results = zip(spmd.results, spmd.result_layouts, strict=True)
        for name, (buffer, layout) in zip(self.program.result_names, results, strict=True):
            with _Place(f"result {name}"):
                state, planned = self.states[buffer], State(laid_out(layout, self.mesh))
                self._expect(state, planned, "the plan says")

    def _expect(self, state: State, wanted: State, who: str) -> None:
        same = dataclasses.replace(state, zero=False).same(wanted)
        expect(
            same, lambda: f"it is {state.describe(self.mesh)}; {who} {wanted.describe(self.mesh)}"
        )

    def _hold(self, buffer: int, state: State) -> None:
        """Records the state of a buffer, after checking that its type has the shape of a shard."""
        state, have = self._one(state), self.spmd.buffers[buffer].type
        shape = local_shape(self._type(buffer), state, self.mesh)
        expect(have.shape == shape, lambda: f"devices hold {shape} of it, its type says {have}")
        self.states[buffer] = state

    def _type(self, buffer: int) -> TensorType:
        return self.program.values[self.spmd.buffers[buffer].value].type

    def _instructions(self, instructions: Sequence[Instruction]) -> frozenset[int]:
        """Walks instructions; returns the axes along which devices communicate in them."""
        axes: frozenset[int] = frozenset()
        for item in instructions:
            if isinstance(item, Run):
                axes |= self._run(item)
            elif isinstance(item, Reshard):
                axes |= self._reshard(item)
            elif isinstance(item, Hold):
                self._pass(item.inputs, item.outputs)
            elif isinstance(item, While):
                axes |= self._while(item)
            else:
                axes |= self._case(item)
        return axes

    def _run(self, item: Run) -> frozenset[int]:
        op = self.program.operations[item.op]
        with _Place(lambda: f"{op.title} at {op.source}" if op.source else op.title):
            operands = [self.states[buffer] for buffer in item.inputs]
            split = self.spmd.form(item.op).layout
            made = self._results_of(op, split, operands)
            for buffer, state in zip(item.outputs, made, strict=True):
                self._hold(buffer, state)
            if made and op.traits.reduces:
                # The initial value is added by one of the devices along these axes.
                sums = self.spmd.sums(item.op)
                named = {axis for axis in sums if self.mesh.sizes[axis] > 1}
                expect(named == made[0].unreduced.keys(), "it starts from several initial values")
        inside = op.work.collectives if op.work else ()
        return frozenset(self.mesh.axis(name) for each in inside for name in each.axes)

    def _results_of(self, op: Operation, split: Layout, operands: list[State]) -> list[State]:
        if op.given or op.manual or op.work or op.rule.halos or any(s.windows for s in operands):
            return results_of(op, split, operands, self.program, self.mesh)
        values = self.program.values
        dtypes = [values[v].type.dtype for v in (*op.operands[:1], *op.results[:1])]
        # The program holds its rules, and what is known its states: nothing has the number of
        # another one.
        states = map(id, operands)
        key = (op.kind, id(op.rule), op.combine, op.zero_init, split, *dtypes, *states)
        made = self._known.get(key)
        if made is None:
            made = results_of(op, split, operands, self.program, self.mesh)
            made = [self._one(state) for state in made]
            self._known[key] = made
        return made

    def _one(self, state: State) -> State:
        """One object for all states that are the same."""
        key = (state.layout, tuple(sorted(state.unreduced.items())), state.varying, state.zero)
        return state if state.windows else self._known.setdefault(key, [state])[0]

    def _reshard(self, item: Reshard) -> frozenset[int]:
        value, step = self.spmd.buffers[item.output].value, item.step
        with _Place(lambda: f"{step.kind} of {self.program.describe(value)}"):
            before = self.states[item.input]
            expect(self.spmd.buffers[item.input].value == value, "it makes another value of it")
            self._hold(item.output, steps.after(before, step, self._type(item.input), self.mesh))
        return frozenset(step.axes) if step.is_collective else frozenset()

    def _pass(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        for buffer, output in zip(inputs, outputs, strict=True):
            self._hold(output, self.states[buffer])

    def _while(self, item: While) -> frozenset[int]:
        """Walks a loop: carried values have the same state before and after every iteration.

        A value that starts from zeros may be a partial result of any sum. If one differs between
        devices after an iteration, it does so from the start, and the body is walked once more.
        """
        carries = [self.program.operations[c] for c in item.loop.carries if c is not None]
        held = [
            self.states[buffer].replace(zero=carry.zero_init or self.states[buffer].zero)
            for carry, buffer in zip(carries, item.inputs, strict=True)
        ]
        with _Place(f"the loop at {item.loop.source}"):
            while True:
                condition = self._section(item.condition, held)
                body = self._section(item.body, held)
                ends = [self.states[buffer] for buffer in item.body.results]
                after = [self._joined(a, b) for a, b in zip(held, ends, strict=True)]
                if all(a.same(b) for a, b in zip(held, after, strict=True)):
                    break
                held = after
            axes = condition | body
            varying = self._decides(item.condition.results[0], axes)
            for buffer, state in zip(item.outputs, held, strict=True):
                self._hold(buffer, state.replace(varying=state.varying | varying))
        return axes

    def _section(self, section: Section, held: Sequence[State]) -> frozenset[int]:
        for buffer, state in zip(section.arguments, held, strict=True):
            self._hold(buffer, state)
        return self._instructions(section.instructions)

    def _case(self, item: Case) -> frozenset[int]:
        with _Place("a choice between branches"):
            axes = frozenset[int]().union(
                *(self._instructions(section.instructions) for section in item.sections)
            )
            varying = self._decides(item.index, axes)
            for number, buffer in enumerate(item.outputs):
                first, *others = (self.states[s.results[number]] for s in item.sections)
                for other in others:
                    first = self._joined(first, other)
                self._hold(buffer, first.replace(varying=first.varying | varying))
        return axes

    def _decides(self, buffer: int, axes: frozenset[int]) -> frozenset[int]:
        """Returns the axes along which devices may choose differently, without communicating."""
        state = self.states[buffer]

        def said(why: str) -> Callable[[], str]:
            return lambda: f"what it depends on is {state.describe(self.mesh)}, {why}"

        expect(
            not state.unreduced and not state.axes and not state.windows,
            said("so that every device decides by its own part"),
        )
        expect(
            state.varying.isdisjoint(axes),
            said("along which devices wait for each other inside"),
        )
        return state.varying

    def _joined(self, one: State, other: State) -> State:
        """Returns the state of a value that is one of two, of equal layout and partial sums."""

        def both() -> str:
            return f"it is {one.describe(self.mesh)} first, then {other.describe(self.mesh)}"

        expect(one.layout == other.layout and not one.windows and not other.windows, both)
        unreduced = other.unreduced if one.zero else one.unreduced
        expect(other.zero or other.unreduced == unreduced, both)
        varying, zero = one.varying | other.varying, one.zero and other.zero
        return State(one.layout, unreduced, varying, zero=zero)


class _Place:
    """Says where a rule does not hold."""

    def __init__(self, where: str | Callable[[], str]) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Mismatch):
            where = self.where if isinstance(self.where, str) else self.where()
            raise LoweringError(
                f"this plan would compute something else than its program, at {where}: "
                f"{error}. Nothing has run. This is a fault of partita's: please report it with "
                "the program; another tactic, or axes=... without one of the mesh, may avoid it"
            ) from None
