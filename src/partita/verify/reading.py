"""Readers of the buffers of an SPMD program."""

from __future__ import annotations

from collections.abc import Iterable

from partita.program.ir import Program
from partita.spmd import Reshard, Run
from partita.spmd.instructions import Case, Instruction, Section


def moves(program: Program, item: Instruction | Section) -> bool:
    """Returns whether a step or an operation only says where elements are."""
    if isinstance(item, Reshard):
        return item.step.collective.moves
    if not isinstance(item, Run):
        return False
    traits = program.operations[item.op].traits
    return traits.rearranges or (traits.slices and not traits.reads_window)


def outputs(item: Run | Reshard) -> tuple[int, ...]:
    """The buffers that a step or an operation makes."""
    return item.outputs if isinstance(item, Run) else (item.output,)


class Readers:
    """Readers of each buffer, among some instructions and sections."""

    def __init__(self, items: Iterable[Instruction | Section]) -> None:
        self.of: dict[int, list[Instruction | Section]] = {}
        for item in items:
            for buffer in _read(item):
                self.of.setdefault(buffer, []).append(item)


def _read(item: Instruction | Section) -> tuple[int, ...]:
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
