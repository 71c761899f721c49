"""Programs with intermediate values as further results, so that two runs can be compared inside.

A device has shards of values, some of them only partial sums. A `Point` is a value that can be
compared as it is: its shards together, in its layout, are the global value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partita.mesh import Mesh
from partita.spmd.instructions import Hold, Instruction, Reshard, Run, While
from partita.spmd.program import SpmdProgram
from partita.tiling import Layout, local_type


@dataclasses.dataclass(frozen=True)
class Point:
    """A buffer of a partitioned program whose shards together are a value of the program."""

    value: int
    buffer: int
    layout: Layout
    instruction: Instruction
    """Instruction that writes the buffer."""


@dataclasses.dataclass(frozen=True)
class _Holds:
    """Contents of a buffer: shards of its value in a layout, or partial results along some axes."""

    layout: Layout
    unreduced: frozenset[int]


def points(spmd: SpmdProgram) -> tuple[Point, ...]:
    """Every point of a program outside of its loops and branches, in the order of execution."""
    held: dict[int, _Holds] = {
        buffer: _Holds(layout, frozenset())
        for buffer, layout in zip(spmd.arguments, spmd.argument_layouts, strict=True)
    }
    found = []
    for item in spmd.instructions:
        for buffer, holds in _filled(spmd, item, held):
            held[buffer] = holds
            value, type_ = spmd.buffers[buffer].value, spmd.buffers[buffer].type
            whole = spmd.program.values[value].type
            if not holds.unreduced and local_type(whole, holds.layout, spmd.mesh) == type_:
                found.append(Point(value, buffer, holds.layout, item))
    return tuple(found)


def _filled(
    spmd: SpmdProgram, item: Instruction, held: dict[int, _Holds]
) -> Iterator[tuple[int, _Holds]]:
    """The buffers that an instruction fills, with what they hold where that is a value."""
    if isinstance(item, Reshard):
        before, step = held.get(item.input), item.step
        moved = step.send is not None or step.window is not None or step.kind == "mask"
        if before is not None and not moved:
            reduced = step.axes if step.collective.reduces else ()
            yield (
                item.output,
                _Holds(step.applied(before.layout), before.unreduced.difference(reduced)),
            )
        return
    if isinstance(item, Run):
        makers = [(item.op, place) for place in range(len(item.outputs))]
    elif isinstance(item, Hold):
        makers = [(part, 0) for part in item.barrier.parts]
    elif isinstance(item, While):
        makers = [(carry, 2) for carry in item.loop.carries if carry is not None]
    else:
        makers = [(join, 0) for join in item.branch.joins]
    for buffer, (op, place) in zip(item.outputs, makers, strict=True):
        value = spmd.program.operations[op].results[place]
        sums = spmd.lowering.sums(spmd.lowering.graph.value_class[value])
        yield buffer, _Holds(spmd.form(op).makes[place], sums)


def observed(spmd: SpmdProgram, chosen: Sequence[Point]) -> SpmdProgram:
    """Returns the program with the values of some points as further results, after its own."""
    program, values = spmd.program, [point.value for point in chosen]
    return dataclasses.replace(
        spmd,
        program=dataclasses.replace(
            program,
            results=(*program.results, *values),
            result_names=(*program.result_names, *map(program.describe, values)),
            changed=True,
        ),
        results=(*spmd.results, *(point.buffer for point in chosen)),
        result_layouts=(*spmd.result_layouts, *(point.layout for point in chosen)),
    )


def on_one_device(spmd: SpmdProgram) -> SpmdProgram:
    """Returns the program before partitioning: over a mesh of a single device."""
    return dataclasses.replace(spmd, mesh=Mesh.of(dict.fromkeys(spmd.mesh.names, 1)))
