"""Nesting of a program's operations: blocks that contain loops, branches and barriers.

Operations and values are numbers here, those of the `Program`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Block:
    """A sequence of operations (by index), loops and branches, as in StableHLO's block."""

    items: tuple[int | Barrier | Loop | Branch, ...]

    def operations(self) -> Iterator[int]:
        """Yields every operation inside, nested ones included, in order."""
        for item in self.items:
            if isinstance(item, int):
                yield item
            else:
                yield from item.operations()


@dataclasses.dataclass(frozen=True)
class Barrier:
    """An optimization barrier: its `BARRIER` operations, one for each operand."""

    parts: tuple[int, ...]

    def operations(self) -> Iterator[int]:
        """Yields every operation inside."""
        yield from self.parts


@dataclasses.dataclass(frozen=True)
class Loop:
    """A `while` loop. Values that it only passes on unchanged are not carried."""

    carries: tuple[int | None, ...]
    """`CARRY` operation of each carried value of the original; None if it never changes."""
    condition: Block
    choose: int
    """The `CHOOSE` operation, at the end of the condition: it reads whether to go on."""
    body: Block
    trips: int | None
    """Number of times the body runs; None if only running the loop tells."""
    source: str

    def operations(self) -> Iterator[int]:
        """Yields every operation inside, the carries first."""
        yield from (carry for carry in self.carries if carry is not None)
        yield from self.condition.operations()
        yield self.choose
        yield from self.body.operations()


@dataclasses.dataclass(frozen=True)
class Branch:
    """A choice between blocks (`case` and `if`)."""

    choose: int
    """The `CHOOSE` operation."""
    branches: tuple[Block, ...]
    yields: tuple[tuple[int, ...], ...]
    """The values that each branch gives."""
    joins: tuple[int, ...]
    """The `JOIN` operation of each result."""

    def operations(self) -> Iterator[int]:
        """Yields every operation inside, the joins last."""
        yield self.choose
        for branch in self.branches:
            yield from branch.operations()
        yield from self.joins


@dataclasses.dataclass(frozen=True)
class Region:
    """A condition, body or branch: the region around it, and whether it may run repeatedly."""

    parent: int
    repeats: bool


def loops_in(block: Block) -> Iterator[Loop]:
    """Yields all loops of a block, outer ones before those inside."""
    for item in block.items:
        if isinstance(item, Loop):
            yield item
            yield from loops_in(item.condition)
            yield from loops_in(item.body)
        elif isinstance(item, Branch):
            for branch in item.branches:
                yield from loops_in(branch)
