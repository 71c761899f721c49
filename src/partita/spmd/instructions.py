"""Instructions of SPMD programs: run on every device, with explicit collectives, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from partita.escape import printed
from partita.mesh import Mesh
from partita.program.blocks import Barrier, Branch, Loop
from partita.program.ir import Program, TensorType
from partita.spmd.steps import Step
from partita.tiling import Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """A device-local tensor: the shard of a value of the program."""

    index: int
    value: int
    type: TensorType


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A device runs one operation of the program on its shards."""

    op: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reshard:
    """One step of a reshard."""

    step: Step
    input: int
    output: int
    again: bool
    """Repeats an earlier reshard of the same buffer on purpose, to save memory in between."""
    times: int
    """Number of times it runs per step of the program."""
    use: tuple[int, int] | None
    """First use that it serves, as (operation, operand number); None on the way to the layout in
    which the value is stored."""
    body: int = 0
    """Region of the loop body in which it runs in each iteration on purpose, though the value comes
    from outside of the loop; else 0."""
    after: int | None = None
    """Buffer that differs between iterations, if there is one; waiting for it, the first step stays
    in the body."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """An optimization barrier around buffers."""

    barrier: Barrier
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Instructions of a loop or branch, with their arguments and results."""

    arguments: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class While:
    """A loop on every device; all devices go around equally often."""

    loop: Loop
    inputs: tuple[int, ...]
    condition: Section
    body: Section
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A choice between sections; all devices choose alike."""

    branch: Branch
    index: int
    sections: tuple[Section, ...]
    outputs: tuple[int, ...]


Instruction = Run | Reshard | Hold | While | Case


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the plan.

    `bytes` is the payload per device: the larger of operand and result. `count` is the number of
    times it runs per step. `value` names the moved value, `source` the user's line that makes it.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    value: str
    source: str
    group: int
    """Number of devices that take part together."""
    dtype: str
    """Element type of the moved data, as StableHLO names it."""
    index: int
    """Its number among the collectives of the plan."""
    pairs: tuple[tuple[int, int], ...] = dataclasses.field(default=(), repr=False)
    """Pairs of (sender, receiver) of a collective_permute; else empty."""

    @printed
    def __str__(self) -> str:
        what = f"{self.kind}({','.join(self.axes)}) {self.bytes} B x{self.count}"
        return f"#{self.index} {what}: {self.value}"


@dataclasses.dataclass(frozen=True, repr=False)
class LocalProgram:
    """The device-local program: buffers, and the instructions that fill them."""

    program: Program
    mesh: Mesh
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_layouts: tuple[Layout, ...]
    result_layouts: tuple[Layout, ...]
    time: Callable[[Step], str] | None = dataclasses.field(
        default=None, repr=False, compare=False, kw_only=True
    )
    """Function that returns the time of a collective in words."""


def inside(instructions: Iterable[Instruction]) -> Iterator[Instruction | Section]:
    """Yields instructions in order, with the sections of loops and branches and their contents."""
    for item in instructions:
        yield item
        sections: tuple[Section, ...] = ()
        if isinstance(item, While):
            sections = item.condition, item.body
        elif isinstance(item, Case):
            sections = item.sections
        for section in sections:
            yield section
            yield from inside(section.instructions)
