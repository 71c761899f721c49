"""Program -> StableHLO on global values: the program as it is, for one device.

A program that passes have changed is written out from the templates of its operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.emit.writer import Writer
from partita.mesh import Mesh
from partita.program.blocks import Barrier, Block, Branch, Loop
from partita.program.ir import Program
from partita.spmd.instructions import Case, Hold, Instruction, Reshard, Run, Section, While
from partita.stablehlo import mlir


def whole(program: Program, mesh: Mesh) -> Any:
    """Returns a program as a StableHLO module; call and use it within an MLIR context."""
    module = mlir.parse(program.module)
    if program.changed:  # else it is in the module as it is
        WholeWriter(program, mesh, module).run()
        module.operation.verify()
    return module


class WholeWriter(Writer):
    """Writes a program on global values."""

    def run(self) -> None:
        """Writes the function."""
        program, block = self.program, self.begin()
        self.values.update(zip(program.arguments, block.arguments, strict=True))
        self.fill(block, _instructions(program, program.body), program.results, "func.return")

    def type_of(self, buffer: int) -> Any:
        """The type of the value: buffers have the numbers of values."""
        return self.build.type(self.program.values[buffer].type)

    def reshard(self, item: Reshard) -> None:
        """Never called."""
        raise AssertionError("global values are not resharded")

    def operate(self, item: Run) -> None:
        """Writes one operation as it is."""
        made = self.copy(item)
        self.build.body.append(made)
        self.wrote(made, item.outputs)


def _instructions(program: Program, block: Block) -> tuple[Instruction, ...]:
    """A block as instructions on global values; buffers are numbered as the values are."""

    def first(ops: Sequence[int], number: int = 0) -> tuple[int, ...]:
        return tuple(program.operations[op].operands[number] for op in ops)

    def made(ops: Sequence[int], number: int = 0) -> tuple[int, ...]:
        return tuple(program.operations[op].results[number] for op in ops)

    found: list[Instruction] = []
    for item in block.items:
        if isinstance(item, int):
            op = program.operations[item]
            found.append(Run(item, op.operands, op.results))
        elif isinstance(item, Barrier):
            found.append(Hold(item, first(item.parts), made(item.parts)))
        elif isinstance(item, Loop):
            carries = [carry for carry in item.carries if carry is not None]
            going_on = first([item.choose])
            condition = Section(made(carries), _instructions(program, item.condition), going_on)
            body = Section(made(carries, 1), _instructions(program, item.body), first(carries, 1))
            found.append(While(item, first(carries), condition, body, made(carries, 2)))
        elif isinstance(item, Branch):
            (index,) = first([item.choose])
            sections = tuple(
                Section((), _instructions(program, branch), first(item.joins, number))
                for number, branch in enumerate(item.branches)
            )
            found.append(Case(item, index, sections, made(item.joins)))
    return tuple(found)
