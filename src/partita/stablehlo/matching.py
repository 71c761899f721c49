"""Matches the operations of a program to the MLIR operations of its module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from partita.program.blocks import Barrier, Block, Branch, Loop

Item = int | Barrier | Loop | Branch


def matched(block: Block, operations: Sequence[Any]) -> Iterator[tuple[Item, Any]]:
    """Every item of a block, nested ones included, each with its MLIR operation.

    Args:
      block: of a program.
      operations: of the same block of its module, without the one that ends it.
    """
    for item, view in zip(block.items, operations, strict=True):
        yield item, view
        for inner, region in zip(_blocks(item), view.regions, strict=False):
            yield from matched(inner, operations_of(region.blocks[0]))


def operations_of(block: Any) -> list[Any]:
    """The operations of an MLIR block, without the one that ends it."""
    return [view.operation for view in block.operations][:-1]


def _blocks(item: Item) -> tuple[Block, ...]:
    """The blocks inside of an item, in the order of the regions of its operation."""
    if isinstance(item, Loop):
        return item.condition, item.body
    return item.branches if isinstance(item, Branch) else ()
