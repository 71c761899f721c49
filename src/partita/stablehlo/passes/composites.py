"""Composites that stand for an operation of CHLO, made that operation again.

Portable artifacts write operations of CHLO in that way, with a decomposition for compilers that do
not know them. Partita does: a product with ragged groups is not one dense product for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.program.op_traits import traits
from partita.stablehlo.mlir import chlo, ir

_PREFIX = "chlo."
_KEPT = ("elementwise", "own")
"""Treatments of operations that partita handles better than their decomposition."""


def restored(op: Any) -> list[Any] | None:
    """The results of the operation that a composite stands for, if it is one of those."""
    kind = op.attributes["name"].value
    if not kind.startswith(_PREFIX) or traits(kind).treatment not in _KEPT:
        return None
    said = op.attributes.get("composite_attributes", None)
    attributes = {a.name: a.attr for a in said} if said is not None else {}
    for name, read in _READ.items():
        if name in attributes:
            attributes[name] = read(attributes[name])
    types = [result.type for result in op.results]
    return list(ir.Operation.create(kind, types, list(op.operands), attributes=attributes).results)


def _dimensions(attribute: Any) -> Any:
    """Dimension numbers, which are lists there, in this order."""
    names = (
        "lhs_batching_dimensions",
        "rhs_batching_dimensions",
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
        "lhs_ragged_dimensions",
        "rhs_group_dimensions",
    )
    lists = [np.array(each).tolist() for each in attribute]
    return chlo.RaggedDotDimensionNumbers.get(**dict(zip(names, lists, strict=True)))


def _precisions(attribute: Any) -> Any:
    return ir.ArrayAttr.get([chlo.PrecisionAttr.get(each.value) for each in attribute])


_READ: dict[str, Callable[[Any], Any]] = {
    "precision_config": _precisions,
    "ragged_dot_dimension_numbers": _dimensions,
}
"""Readers of the attributes that composites write in another form."""
