"""Sums that begin with zero, as Python's `sum` writes them: `0 + x` is read as `x`.

XLA does the same. Left in, the zero is one more operand to be reconciled with those that are
unreduced.
"""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import number_of, origin
from partita.stablehlo.passes.driver import Pattern


def _rewrite(op: Any) -> list[Any] | None:
    a, b = op.operands
    return [b] if _is_zero(a) else [a] if _is_zero(b) else None


def _is_zero(value: Any) -> bool:
    return number_of(origin(value)) == 0


drop_added_zeros = Pattern(
    lambda op: traits(op.name).combiner == "add" and not len(op.attributes),  # nor a name
    _rewrite,
)
"""Replaces a sum with zeros by the other operand."""
