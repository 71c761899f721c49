"""Elements that nothing reads: what only makes them is dropped.

`jnp.pad` by nothing reads the edges all the same, and a slice of a concatenation may read some of
its operands only. XLA drops the others. Left in, they would be moved between devices and paid for.

- Values without elements are made of nothing, and left out of concatenations.
- A slice of a concatenation is one of those operands that it reads.
- A select by a constant is what that selects, an update of all elements the update.
- Branches of which a constant chooses one are what is in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.building import bounds_of, sliced
from partita.stablehlo.mlir import filled, hlo, ir, maker, number_of, returned
from partita.stablehlo.passes.driver import Pattern, Rewrite

_COMPUTED = frozenset(("elementwise", "broadcasting", "generated", "shardy", "own"))
"""Treatments of operations that only compute their results."""


def _elements(type_: Any) -> int:
    return math.prod(type_.shape) if type_.has_static_shape else -1


def _makes_nothing(op: Any) -> bool:
    """Returns whether an operation only computes, and all its results are empty."""
    computes = traits(op.name).treatment in _COMPUTED and not op.name.endswith("custom_call")
    types = [result.type for result in op.results]
    return bool(computes and types) and all(
        isinstance(type_, ir.RankedTensorType) and _elements(type_) == 0 for type_ in types
    )


def _nothing(type_: Any) -> Any:
    """A value without elements that reads no other."""
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(type_).element_type)
    return hlo.broadcast_in_dim(type_, filled(scalar, 0), ir.DenseI64ArrayAttr.get([]))


def _rewrite(op: Any) -> Sequence[Any] | None:
    if _makes_nothing(op):
        return [_nothing(result.type) for result in op.results]
    return _READ_LESS[op.name](op)


def _concatenate(op: Any) -> list[Any] | None:
    kept = [each for each in op.operands if _elements(each.type) != 0]
    return None if len(kept) == len(op.operands) else [_joined(kept, op)]


def _joined(values: list[Any], op: Any) -> Any:
    """Some operands of a concatenation, one behind the other."""
    dim = op.attributes["dimension"]
    return values[0] if len(values) == 1 else hlo.concatenate(values, dim)


def _slice(op: Any) -> list[Any] | None:
    made = maker(op.operands[0])
    if made is None or made.name != "stablehlo.concatenate":
        return None
    dim = int(ir.IntegerAttr(made.attributes["dimension"]).value)
    starts, limits, strides = bounds_of(op)
    end, before, kept = 0, 0, []
    for each in made.operands:
        begin, end = end, end + each.type.shape[dim]
        if end <= starts[dim]:
            before = end
        elif begin < limits[dim]:
            kept.append(each)
    if len(kept) == len(made.operands) or not kept:
        return None
    starts[dim], limits[dim] = starts[dim] - before, limits[dim] - before
    return [sliced(_joined(kept, made), starts, limits, strides)]


def _select(op: Any) -> list[Any] | None:
    predicate, chosen, other = op.operands
    always = _number(predicate)
    return None if always is None else [chosen if always else other]


def _number(value: Any) -> int | None:
    """The number that a value is everywhere, if the program says it."""
    if isinstance(known := number_of(value), int):
        return int(known)
    made = maker(value)
    if made is not None and traits(made.name).broadcasts:
        return _number(made.operands[0])
    if made is not None and made.name == "stablehlo.clamp":  # as `lax.switch` has it
        least, number, most = map(_number, made.operands)
        if least is not None and number is not None and most is not None:
            return min(max(least, number), most)
    return None


def _update(op: Any) -> list[Any] | None:
    whole, update = op.operands[0], op.operands[1]
    return [update] if update.type == whole.type else None


def _branches(op: Any) -> list[Any] | None:
    number, last = _number(op.operands[0]), len(op.regions) - 1
    if number is None or not op.results:
        return None
    if op.name == "stablehlo.if":
        number = 0 if number else 1
    chosen = op.regions[number if 0 <= number < last else last].blocks[0]
    values = returned(chosen)
    for each in list(chosen.operations)[:-1]:
        each.operation.move_before(op)
    return values


_READ_LESS: dict[str, Rewrite] = {
    "stablehlo.concatenate": _concatenate,
    "stablehlo.slice": _slice,
    "stablehlo.select": _select,
    "stablehlo.dynamic_update_slice": _update,
    "stablehlo.case": _branches,
    "stablehlo.if": _branches,
}
"""Operations that may read less than they are given: what their results are then, if so."""

drop_unread = Pattern(
    lambda op: op.name in _READ_LESS or (len(op.operands) > 0 and _makes_nothing(op)), _rewrite
)
"""Pass that drops operands of which no element is read."""
