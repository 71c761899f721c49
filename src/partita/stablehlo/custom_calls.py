"""Custom calls that stand for something of the user's, from when JAX lowers to when partita reads.

They are there only while partita traces; nothing else ever sees them.
"""

from __future__ import annotations

from typing import Any

from partita.stablehlo.mlir import ir
from partita.stablehlo.refusals import target_of


def make(target: str, text: str, value: Any) -> list[Any]:
    """A call at the insertion point that hands a value on and says something of it; its result."""
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": ir.StringAttr.get(target),
            "backend_config": ir.StringAttr.get(text),
        },
    )
    return list(call.results)


def is_one(operation: Any, target: str) -> bool:
    """Returns whether an operation is a call of this target."""
    return target_of(operation) == target


def said(operation: Any) -> str:
    """Returns the backend config of a call."""
    return str(operation.attributes["backend_config"].value)
