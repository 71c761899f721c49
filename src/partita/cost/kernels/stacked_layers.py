"""Stacks that loops read and gather layer by layer.

XLA gathers along the dimension that is outermost in memory. To gather layers along another one, it
copies the whole stack into such a layout before the first loop, and keeps that until the last loop
has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partita.program.collectives import ALL_GATHER
from partita.program.ir import Operation, Program
from partita.program.op_traits import BARRIER
from partita.spmd.steps import Step


@dataclasses.dataclass(frozen=True)
class LayerOf:
    """A value that is one layer of a stack."""

    layers: int
    dtype: str
    """The element type of the stack."""
    region: int
    """The loop that reads it."""
    stack: int


def layers_read(program: Program) -> dict[int, LayerOf]:
    """Returns the stacks of values that loops read as one layer of an argument. Conversions and
    reshapes of such a layer count, too; stacks that the program makes itself do not: it makes them
    as needed."""
    values, found = program.values, dict[int, LayerOf]()
    for op in program.operations:
        if not op.operands or not op.results:
            continue
        operand, result = op.operands[0], op.results[0]
        if op.traits.reads_window and program.regions[op.region].repeats:
            given = values[operand].producer is None
            shape, part = values[operand].type.shape, values[result].type.shape
            if given and part[:1] == (1,) and part[1:] == shape[1:]:
                dtype = values[operand].type.dtype
                found[result] = LayerOf(shape[0], dtype, op.region, operand)
        else:
            for read, made in _passed(program, op):
                if read in found and op.region == found[read].region:
                    found[made] = found[read]
    return found


def _passed(program: Program, op: Operation) -> list[tuple[int, int]]:
    """Returns the operands that an operation passes on, each with the result that it becomes."""
    if op.traits.renames or op.traits.converts:
        return [(op.operands[0], op.results[0])]
    if op.kind == BARRIER:
        return list(zip(op.operands, op.results, strict=False))
    return []


def laid_anew(layer: LayerOf, steps: Sequence[Step]) -> float:
    """Returns the bytes of a device's shard of the stack in the layout for gathering its layers by
    these steps; 0 if it has that layout already."""
    first = steps[0]
    if first.kind != ALL_GATHER.name or all(size == 1 for size in first.before.shape[: first.dim]):
        return 0.0
    shape = (layer.layers, *first.before.shape)
    return float(dataclasses.replace(first.before, shape=shape, dtype=layer.dtype).bytes)
