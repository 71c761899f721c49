"""Nesting of a program's operations: blocks that contain loops, branches and barriers.

Operations and values are numbers here, those of the `Program`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Block:
    """A sequence of operations (by index), loops and branches, as in StableHLO's block."""

    items: tuple[Item, ...]

    def operations(self) -> Iterator[int]:
        """Yields every operation inside, nested ones included, in order."""
        for item in self.items:
            if isinstance(item, int):
                yield item
            else:
                yield from item.operations()

    def nested(self) -> Iterator[Item]:
        """Yields every item, each loop and branch before those inside."""
        for item in self.items:
            yield item
            for inner in blocks_of(item):
                yield from inner.nested()


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


Item = int | Barrier | Loop | Branch
"""An entry of a block: an operation by index, or what orders operations."""


def blocks_of(item: Item) -> tuple[Block, ...]:
    """Returns the blocks inside of an item, in the order of their regions."""
    if isinstance(item, Loop):
        return item.condition, item.body
    return item.branches if isinstance(item, Branch) else ()


def loops_in(block: Block) -> Iterator[Loop]:
    """Yields all loops of a block, outer ones before those inside."""
    return (item for item in block.nested() if isinstance(item, Loop))
