"""Combiners of reductions and scatters, recognised from the body that combines two elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.program.combining import NEUTRAL
from partita.program.op_traits import traits
from partita.stablehlo.mlir import element_types, filled, ir
from partita.stablehlo.refusals import tensor_type

_CHOICE = "choice"
"""One of the two elements, whichever."""


def combiner(op: Any) -> str | None:
    """Returns how an operation of one result combines elements, as `Traits.combiner`, or None."""
    body = [inner.operation for inner in op.regions[0].blocks[0].operations]
    if len(op.results) != 1 or len(body) != 2:
        return None
    found = _combiners(op)[0]
    return None if found == _CHOICE else found


def neutral(op: Any) -> int | float | None:
    """The number that a reduction combines with any other to that other one.

    None where the body is not one such operation, or one of another type.
    """
    how, type_ = combiner(op) or "", op.results[0].type
    if isinstance(ir.RankedTensorType(type_).element_type, ir.ComplexType):
        return NEUTRAL.get(how)
    dtype = element_types().get(tensor_type(type_).dtype)
    if dtype is None or dtype.kind == "b":
        return {"or": 0, "and": 1}.get(how)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    least, most = (int(limits.min), int(limits.max)) if limits else (-math.inf, math.inf)
    return {**NEUTRAL, "max": least, "min": most}.get(how)


def works_in_parts(op: Any) -> bool:
    """Returns whether a reduction can be done in parts, with its initial values counted once."""
    how = _combiners(op)
    # What is chosen may depend on what is added up.
    return None not in how and not (_CHOICE in how and not NEUTRAL.keys().isdisjoint(how))


def starts_of_parts(op: Any) -> list[Any]:
    """What to start the parts from: the initial values, where it does not matter how often."""
    starts, how = list(op.operands)[len(op.results) :], _combiners(op)
    return [
        filled(start.type, NEUTRAL[each]) if each in NEUTRAL else start
        for start, each in zip(starts, how, strict=True)
    ]


def _combiners(op: Any) -> list[str | None]:
    """Returns for each result how it combines its own two elements; None if in no known way."""
    block = op.regions[0].blocks[0]
    *_, end = block.operations
    found: list[str | None] = []
    for number, made in enumerate(end.operation.operands):
        own = {block.arguments[number], block.arguments[number + len(op.results)]}
        found.append(None if made.owner == block else _combined(made.owner, own))
    return found


def _combined(maker: Any, own: set[Any]) -> str | None:
    """Returns how an operation of the body combines these two elements; None if in no known way."""
    if maker.name == "stablehlo.select":
        return _CHOICE if set(list(maker.operands)[1:]) == own else None
    return traits(maker.name).combiner or None if set(maker.operands) == own else None
