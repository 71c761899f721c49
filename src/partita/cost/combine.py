"""Small all_reduces that a compiler makes one of: they wait once for the network, not each.

XLA combines all_reduces over the same devices, of the same type and the same sum, that do not
depend on each other, up to a number of bytes. A plan has every all_reduce by itself, in its cost,
its search and in what is given to XLA; this only tells what XLA makes of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from partita.cost.collectives import interconnect
from partita.cost.hardware import Hardware
from partita.program.collectives import ALL_REDUCE
from partita.spmd import SpmdProgram
from partita.spmd.instructions import Case, Instruction, Reshard, While
from partita.tiling import Axes


@dataclasses.dataclass(frozen=True)
class Together:
    """All the all_reduces over the same axes, combined."""

    count: int
    """How many run per step."""
    seconds: float
    """Their time, summed."""


def after_combining(
    spmd: SpmdProgram, hardware: Hardware
) -> Mapping[tuple[str, tuple[str, ...]], Together]:
    """What a compiler makes of the all_reduces of a program, by kind and axes as in `Traffic`."""
    network, found = (
        interconnect(spmd.mesh, hardware),
        dict[tuple[str, tuple[str, ...]], Together](),
    )
    for one in combine(spmd, int(hardware.combine.value)):
        key = (ALL_REDUCE.name, spmd.mesh.axis_names(one.axes))
        before = found.get(key, Together(0, 0.0))
        seconds = network.collective_seconds(ALL_REDUCE.name, one.axes, one.bytes)
        found[key] = Together(before.count + one.times, before.seconds + one.times * seconds)
    return found


@dataclasses.dataclass
class Combined:
    """All_reduces that become one."""

    axes: Axes
    bytes: int
    """Payload per device of all together."""
    times: int
    """How often it runs per step."""
    members: int = 0
    """How many there were."""
    needs: int = 0
    """The others on which these depend, as bits."""


def combine(spmd: SpmdProgram, limit: int) -> tuple[Combined, ...]:
    """What the all_reduces of a program are combined to.

    Args:
      spmd: the program.
      limit: bytes up to which all_reduces are combined; larger ones stay by themselves.
    """
    return tuple(_sections(spmd.instructions, limit))


def _sections(instructions: Sequence[Instruction], limit: int) -> Iterator[Combined]:
    """Those of every loop body and branch by themselves."""
    yield from _combined(instructions, limit)
    for item in instructions:
        if isinstance(item, While):
            yield from _sections(item.condition.instructions, limit)
            yield from _sections(item.body.instructions, limit)
        elif isinstance(item, Case):
            for section in item.sections:
                yield from _sections(section.instructions, limit)


def _combined(instructions: Sequence[Instruction], limit: int) -> list[Combined]:
    found: list[Combined] = []
    latest: dict[object, int] = {}
    needed: dict[int, int] = {}
    """For every buffer, those on which it depends, as bits."""
    for item in instructions:
        reads, makes = _buffers(item)
        needs = 0
        for buffer in reads:
            needs |= needed.get(buffer, 0)
        if (
            isinstance(item, Reshard)
            and item.step.is_collective
            and item.step.kind == ALL_REDUCE.name
        ):
            step = item.step
            key = (step.axes, step.combine, step.dtype)
            number = latest.get(key, -1)
            fits = number >= 0 and found[number].bytes + step.bytes <= limit
            if not fits or _reaches(found, needs, number):
                number = latest[key] = len(found)
                found.append(Combined(step.axes, 0, item.times))
            one = found[number]
            one.bytes += step.bytes
            one.members += 1
            one.needs |= needs
            needs |= 1 << number
        for buffer in makes:
            needed[buffer] = needs
    return found


def _reaches(found: Sequence[Combined], needs: int, number: int) -> bool:
    """Whether what depends on `needs` depends on one of these, directly or not."""
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
    """What an instruction reads, and what it makes that others see."""
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
