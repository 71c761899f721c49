"""Custom calls, those included that stand for something of the user's while partita traces: from
when JAX lowers to when partita reads, and nothing else ever sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import ir

_KIND = "stablehlo.custom_call"


def create(
    target: str, operands: Sequence[Any], results: Sequence[Any], **attributes: Any
) -> list[Any]:
    """A call at the insertion point; its results.

    Args:
      target: what it calls.
      operands: its operands.
      results: types of its results.
      **attributes: further attributes.
    """
    attributes["call_target_name"] = ir.StringAttr.get(target)
    call = ir.Operation.create(_KIND, list(results), list(operands), attributes=attributes)
    return list(call.results)


def make(target: str, text: str, value: Any) -> list[Any]:
    """A call at the insertion point that hands a value on and says something of it; its result."""
    return create(target, [value], [value.type], backend_config=ir.StringAttr.get(text))


def target_of(op: Any) -> str:
    """Returns the target of a custom call; an empty string for other operations."""
    return str(op.attributes["call_target_name"].value) if traits(op.name).calls else ""


def said(operation: Any) -> str:
    """Returns the backend config of a call."""
    return str(operation.attributes["backend_config"].value)
