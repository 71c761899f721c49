"""Sums that begin with zero, as Python's `sum` writes them: `0 + x` is read as `x`.

XLA does the same. Left in, the zero is one more operand to be reconciled with those that are
unreduced.
"""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import ir, splat


def drop_added_zeros(main: Any) -> None:
    """Has what reads a sum with zeros read the other operand; the sums themselves are left dead."""

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.add" and not len(op.attributes):  # nor a name
            a, b = op.operands
            for zero, other in ((a, b), (b, a)):
                if _is_zero(zero):
                    op.results[0].replace_all_uses_with(other)
                    break
        return ir.WalkResult.ADVANCE

    main.operation.walk(visit)


def _is_zero(value: Any) -> bool:
    """Whether a value is made of nothing but zeros, as a constant or from one."""
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name in ("stablehlo.constant", "sdy.constant"):
            number = getattr(splat(op), "value", None)
            return isinstance(number, int | float) and number == 0
        if not traits(op.name).keeps_zeros:
            return False
        value = op.operands[0]
    return False
