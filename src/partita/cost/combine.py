"""Small collectives that a compiler combines into one: they wait once for the network, not each.

XLA combines collectives of one kind over the same devices that do not depend on each other. Sums
must have the same type, gathers the same dimension, and their results at most a number of bytes.
The hardware file lists the kinds. A plan keeps every collective separate, as it is given to XLA;
this module computes what XLA makes of them, one by one. `partita.cost.combining` has a short form
of it, for the time of a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from partita.cost.collectives import interconnect
from partita.cost.hardware import Hardware
from partita.program.collectives import ALL_REDUCE
from partita.spmd import SpmdProgram
from partita.spmd.instructions import Case, Instruction, Reshard, While
from partita.spmd.steps import Step
from partita.tiling import Axes


@dataclasses.dataclass(frozen=True)
class Together:
    """All the collectives of one kind over the same axes, combined."""

    count: int
    """Number of runs per step."""
    seconds: float
    """Total time in seconds."""


def after_combining(
    spmd: SpmdProgram, hardware: Hardware
) -> Mapping[tuple[str, tuple[str, ...]], Together]:
    """Returns the collectives after combining, by kind and axes as in `Traffic`."""
    network, found = (
        interconnect(spmd.mesh, hardware),
        dict[tuple[str, tuple[str, ...]], Together](),
    )
    for one in combine(spmd, int(hardware.combine.value), hardware.combined):
        key = (one.kind, spmd.mesh.axis_names(one.axes))
        before = found.get(key, Together(0, 0.0))
        seconds = network.collective_seconds(one.kind, one.axes, one.bytes)
        found[key] = Together(before.count + one.times, before.seconds + one.times * seconds)
    return found


@dataclasses.dataclass
class Combined:
    """Collectives that become one."""

    kind: str
    axes: Axes
    bytes: int
    """Payload in bytes per device of all members together."""
    times: int
    """Number of runs per step."""
    members: int = 0
    """Number of collectives that were combined."""
    result: int = 0
    """Bytes of all their results."""
    needs: int = 0
    """Set, as bits, of the other combined collectives on which this one depends."""


def combine(
    spmd: SpmdProgram, limit: int, kinds: Collection[str] = (ALL_REDUCE.name,)
) -> tuple[Combined, ...]:
    """Returns the collectives of a program as a compiler combines them.

    Args:
      spmd: the program.
      limit: bytes of results up to which they are combined; larger ones stay separate.
      kinds: kinds of collectives that are combined.
    """
    return tuple(_sections(spmd.instructions, limit, kinds))


def alike(step: Step) -> tuple[object, ...]:
    """Returns a key that is equal for collectives that may be combined."""
    summed = (step.combine, step.dtype) if step.collective.reduces else (step.dim,)
    return (step.kind, step.axes, *summed)


def _sections(
    instructions: Sequence[Instruction], limit: int, kinds: Collection[str]
) -> Iterator[Combined]:
    """Combines the collectives of every loop body and branch separately."""
    yield from _combined(instructions, limit, kinds)
    for item in instructions:
        if isinstance(item, While):
            yield from _sections(item.condition.instructions, limit, kinds)
            yield from _sections(item.body.instructions, limit, kinds)
        elif isinstance(item, Case):
            for section in item.sections:
                yield from _sections(section.instructions, limit, kinds)


def _combined(
    instructions: Sequence[Instruction], limit: int, kinds: Collection[str]
) -> list[Combined]:
    found: list[Combined] = []
    latest: dict[object, int] = {}
    needed: dict[int, int] = {}
    """Combined collectives on which every buffer depends, as bits."""
    for item in instructions:
        reads, makes = _buffers(item)
        needs = 0
        for buffer in reads:
            needs |= needed.get(buffer, 0)
        if isinstance(item, Reshard) and item.step.is_collective and item.step.kind in kinds:
            step = item.step
            key = alike(step)
            number = latest.get(key, -1)
            fits = number >= 0 and found[number].result + step.after.bytes <= limit
            if not fits or _reaches(found, needs, number):
                number = latest[key] = len(found)
                found.append(Combined(step.kind, step.axes, 0, item.times))
            one = found[number]
            one.bytes += step.bytes
            one.result += step.after.bytes
            one.members += 1
            one.needs |= needs
            needs |= 1 << number
        for buffer in makes:
            needed[buffer] = needs
    return found


def _reaches(found: Sequence[Combined], needs: int, number: int) -> bool:
    """Returns whether any collective in the set `needs` is this one, or depends on it."""
    seen = needs
    while needs:
        if needs >> number & 1:
            return True
        more = 0
        while needs:
            lowest = needs & -needs
            more |= found[lowest.bit_length() - 1].needs
            needs ^= lowest
        needs = more & ~seen
        seen |= more
    return False


def _buffers(item: Instruction) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the buffers that an instruction reads, and those that it makes for others."""
    if isinstance(item, Reshard):
        return (item.input,), (item.output,)
    if isinstance(item, While):
        inside = [b for part in (item.condition, item.body) for b in _read_in(part.instructions)]
        return [*item.inputs, *inside], item.outputs
    if isinstance(item, Case):
        inside = [
            b for part in item.sections for b in [*_read_in(part.instructions), *part.results]
        ]
        return [item.index, *inside], item.outputs
    return item.inputs, item.outputs


def _read_in(instructions: Sequence[Instruction]) -> Iterator[int]:
    for item in instructions:
        yield from _buffers(item)[0]
