"""`Microbatches`: the program runs in steps, one after the other, on a part of its examples each.

Time is an axis of a mesh then: the program is split along an axis of that many places, as by data
parallelism, and lowered as always; the axis becomes a loop (`partita.spmd.time_axis`). So which
values are sums, and over what, is known, and not guessed: 1/N of a mean is a constant of the
program.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from partita.decisions.decision import Decision
from partita.decisions.stage import Stage
from partita.decisions.values import Request, ShardValues
from partita.emit.time_loop import NeedsPositions, write_loop
from partita.errors import TacticError
from partita.mesh import Mesh
from partita.program import Program
from partita.program.op_traits import CONSTRAINT
from partita.spmd import Lowerer, SpmdProgram, unfold
from partita.spmd.instructions import Instruction, Reshard, Run
from partita.spmd.time_axis import Coupling, TimeLoop, time_loop
from partita.stablehlo.rewritten import rewritten
from partita.validation import validate

TIME = "step"
"""Name of the axis, in messages."""


class Microbatches(Decision, frozen=True, omit_defaults=True, tag="microbatches"):
    """Runs the program in steps, and adds up what each gives: gradient accumulation.

    It goes before all decisions about layouts, which are of the program that it makes.
    """

    changes_program: ClassVar[bool] = True
    steps: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    examples: tuple[tuple[str, Annotated[int, msgspec.Meta(ge=0, le=2**31)]], ...]
    """Arguments that hold examples, by name, and the dimension that counts them."""
    apart: bool = False
    """True if what couples examples, as batch normalisation does, couples those of one only."""

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage of the program in steps, of which nothing is sharded.

        Raises:
          TacticError: layouts have been decided already; an argument is not there, or its size is
            not a multiple of the steps; or what is computed of one example depends on others.
        """
        if not stage.is_first:
            raise TacticError(
                "micro-batches change the program, which has been sharded already: decide them "
                "before all layouts"
            )
        if self.steps == 1:
            return stage
        return stage.of(stage.context.changing(self, lambda: self._changed(stage)))

    def describe(self, stage: Stage) -> str:
        """Returns it in words."""
        return f"{self.steps} micro-batches"

    def problem(self, program: Program) -> str:
        """Returns that an argument is not there, or does not divide into so many steps."""
        values = dict(zip(program.argument_names, program.arguments, strict=True))
        for name, dim in self.examples:
            if name not in values:
                return f"there is no argument {name}"
            shape = program.values[values[name]].type.shape
            if dim >= len(shape):
                return f"{name} has no dimension {dim}"
            if shape[dim] % self.steps:
                return (
                    f"{name} has {shape[dim]} examples, which {self.steps} micro-batches do not "
                    "divide"
                )
        return ""

    def _changed(self, stage: Stage) -> Program:
        program, mesh = stage.context.analysis.program, stage.context.mesh
        if problem := self.problem(program):
            raise TacticError(problem)
        spmd = self._split(stage)
        loop = time_loop(spmd, self.apart)
        if isinstance(loop, Coupling):
            raise TacticError(_coupled(spmd, loop))
        try:
            return _in_steps(spmd, loop, mesh.devices)
        except NeedsPositions:  # of examples that follow each other
            return _in_steps(spmd, loop, 1)

    def _split(self, stage: Stage) -> SpmdProgram:
        """Returns the program split along an axis of steps: as if each were on a device."""
        context = stage.context.over(Mesh((TIME,), (self.steps,)))
        program = context.analysis.program
        values = dict(zip(program.argument_names, program.arguments, strict=True))
        requests = tuple(Request(name, values[name], (dim,)) for name, dim in self.examples)
        start = stage.of(context)
        split = ShardValues(requests, 0).apply(start)
        graph, tiling = split.folded
        lowerer = Lowerer(graph, context.mesh, in_time=True)
        spmd = unfold(lowerer.lower(tiling))
        validate(spmd)
        return spmd


def _in_steps(spmd: SpmdProgram, loop: TimeLoop, devices: int) -> Program:
    def write(module: object) -> bool:
        write_loop(spmd, loop, module, devices)
        return True

    return rewritten(spmd.program, write)


def _coupled(spmd: SpmdProgram, coupling: Coupling) -> str:
    """Returns why a program cannot run in steps, with the lines of the user."""
    made = spmd.program.values[spmd.buffers[coupling.buffer].value].producer
    where = "" if made is None else _line(spmd, made)
    reader = _line(spmd, coupling.reader)
    if made is not None and spmd.program.operations[made].kind == CONSTRAINT:
        return (
            f"the program cannot run in micro-batches: {where} says how examples are split over "
            "devices, which holds for the whole batch; leave the constraint out, a tactic says it"
        )
    needs = f", and {reader} needs it for each example" if reader else ""
    hint = 'normalise over single examples, or say coupled="per_microbatch"'
    return (
        f"the program cannot run in micro-batches: {where or 'a value'} is made of all examples "
        f"together{needs}; {hint} if those of a micro-batch may stand for all"
    )


def _line(spmd: SpmdProgram, item: Instruction | int) -> str:
    """Returns an operation and where it is from; empty for a step that has none."""
    if isinstance(item, Reshard):
        made = spmd.program.values[spmd.buffers[item.input].value].producer
        return "" if made is None else _line(spmd, made)
    number = item if isinstance(item, int) else item.op if isinstance(item, Run) else None
    if number is None:
        return "a loop"
    op = spmd.program.operations[number]
    return f"{op.title} at {op.source}" if op.source else op.title
