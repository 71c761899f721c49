"""Templates: the operations of a module, as the operations of its program name them by number.

A program says in which order operations run and what they read. What they do is in the module:
`Operation.template` is the number of the MLIR operation there. Emission copies the template for
every occurrence, so one template may be written any number of times, in any order.
"""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import ir


def templates(block: Any) -> list[Any]:
    """Returns the MLIR operations of a block by template number.

    The bodies of loops and branches follow the loop or branch. The operations that end blocks have
    no number, nor have those inside of other operations: a reduction is one template.
    """
    found = []
    for view in list(block.operations)[:-1]:
        op = view.operation
        found.append(op)
        if traits(op.name).treatment == "structure":
            for region in op.regions:
                found += templates(region.blocks[0])
    return found


def captured(op: Any) -> list[Any]:
    """Returns the values that the regions of an operation read from outside of it, each once."""
    read: dict[Any, None] = {}
    inside: set[Any] = set()

    def visit(inner: Any) -> Any:
        if inner != op:
            read.update(dict.fromkeys(inner.operands))
            inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return [value for value in read if value not in inside]
