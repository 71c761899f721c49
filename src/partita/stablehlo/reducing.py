"""Bodies of reductions: what they start from without changing anything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.stablehlo.mlir import element_types, ir
from partita.stablehlo.refusals import tensor_type

_LEAST = {"maximum", "minimum"}


def neutral(op: Any) -> int | float | None:
    """The number that the body of a reduction combines with any other to that other one.

    None for a body that is not one such operation, or one of another type.
    """
    body = [inner.operation.name.rpartition(".")[2] for inner in op.regions[0].blocks[0].operations]
    if len(op.results) != 1 or len(body) != 2:
        return None
    known: int | float | None = {"add": 0, "multiply": 1}.get(body[0])
    if isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.ComplexType):
        return known
    dtype = element_types().get(tensor_type(op.results[0].type).dtype)
    if dtype is None or dtype.kind == "b":
        return {"or": 0, "and": 1}.get(body[0])
    whole = dtype.kind in "iu"
    limits = np.iinfo(dtype) if whole else None
    least, most = (int(limits.min), int(limits.max)) if limits else (-math.inf, math.inf)
    return {"maximum": least, "minimum": most}.get(body[0], known)
