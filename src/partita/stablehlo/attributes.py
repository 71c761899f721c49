"""Notes of ours on the operations of a module.

They are kept as `mhlo.frontend_attributes`, which may stay in a program that is compiled.
"""

from __future__ import annotations

from typing import Any

from partita.stablehlo.mlir import ir

_ATTRIBUTES = "mhlo.frontend_attributes"


def get(operation: Any, key: str) -> str:
    """The note of this name; empty without."""
    if _ATTRIBUTES not in operation.attributes:
        return ""
    known = ir.DictAttr(operation.attributes[_ATTRIBUTES])
    return str(getattr(known[key], "value", "")) if key in known else ""


def put(operation: Any, key: str, text: str) -> None:
    """Sets a note; others stay."""
    known = operation.attributes
    others = {a.name: a.attr for a in known[_ATTRIBUTES]} if _ATTRIBUTES in known else {}
    known[_ATTRIBUTES] = ir.DictAttr.get(others | {key: ir.StringAttr.get(text)})
