"""`top_k` and `argmax` split in two, so that the dimension can be sharded.

Results of several devices cannot be summed here, so the dimension would have to be gathered.
Instead it is cut into as many parts as a mesh has devices: one operation finds the largest of every
part, a second one the largest of these. The first needs no more than its own part, and what is
gathered for the second is little. Both see elements in the original order, so ties fall as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.bodies import starts_of_parts, works_in_parts
from partita.stablehlo.building import again, i64, shape_of, with_shape
from partita.stablehlo.mlir import chlo, filled, hlo, ir
from partita.stablehlo.passes.driver import ForDevices, Pattern
from partita.stablehlo.passes.parts import in_parts, parts_of


def _matches(op: Any) -> bool:
    return op.name == "chlo.top_k" or _reduces_together(op.name, op.results)


def _reduces_together(kind: str, results: Sequence[Any]) -> bool:
    """Returns whether an operation reduces several operands, such as values and positions."""
    return traits(kind).reduces and len(results) > 1


def _rewrite(devices: int, op: Any) -> list[Any] | None:
    dim = _dimension(op)
    if dim is None:
        return None
    parts = parts_of(shape_of(op.operands[0])[dim], devices, _kept(op))
    return _SPLIT[op.name](op, dim, parts) if parts > 1 else None


def _dimension(op: Any) -> int | None:
    """The one dimension that an operation orders; None if results of devices can be combined."""
    if op.name == "chlo.top_k":
        return len(shape_of(op.operands[0])) - 1
    dimensions = list(op.attributes["dimensions"])
    if len(dimensions) != 1 or not works_in_parts(op):
        return None
    return int(dimensions[0])


def _kept(op: Any) -> int:
    return int(op.attributes["k"].value) if op.name == "chlo.top_k" else 1


def _reduce(op: Any, dim: int, parts: int) -> list[Any]:
    """A reduction of several operands together, such as values and their positions."""
    count = len(op.results)
    operands, inits = list(op.operands)[:count], list(op.operands)[count:]
    parted = [in_parts(v, dim, parts) for v in operands]
    first = _along(op, parted, starts_of_parts(op), dim + 1)
    return _along(op, first, inits, dim)


def _along(op: Any, operands: list[Any], inits: list[Any], dim: int) -> list[Any]:
    """The same reduction, of other operands along another dimension."""
    shapes = [shape_of(value) for value in operands]
    made = again(op, [*operands, *inits], *([*s[:dim], *s[dim + 1 :]] for s in shapes))
    made[0].owner.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([dim])
    return made


def _top_k(op: Any, dim: int, parts: int) -> list[Any]:
    """The largest of every part, with their places in the dimension, then the largest of these."""
    k = _kept(op)
    values, places = chlo.top_k(in_parts(op.operands[0], dim, parts), k)
    size, type_ = shape_of(op.operands[0])[dim], places.type
    starts = hlo.multiply(hlo.iota(type_, i64(dim)), filled(type_, size // parts))
    places = hlo.add(places, starts)
    shape = [*shape_of(places)[:dim], parts * k]
    values, places = (hlo.reshape(with_shape(v, shape), v) for v in (values, places))
    best, where = chlo.top_k(values, k)
    return [best, _take_along(places, where, dim)]


def _take_along(values: Any, places: Any, dim: int) -> Any:
    """The elements of the last dimension of `values` at `places`, row by row."""
    rows = list(range(dim))
    shape = shape_of(places)
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=[],
        collapsed_slice_dims=[dim],
        operand_batching_dims=rows,
        start_indices_batching_dims=rows,
        start_index_map=[dim],
        index_vector_dim=dim + 1,
    )
    indices = hlo.reshape(with_shape(places, [*shape, 1]), places)
    return hlo.gather(values, indices, numbers, ir.DenseI64ArrayAttr.get([1] * len(shape)))


_SPLIT: dict[str, Callable[[Any, int, int], list[Any]]] = {
    "stablehlo.reduce": _reduce,
    "chlo.top_k": _top_k,
}
"""Table of kinds and what splits them, along a dimension and in so many parts."""

split_top_k = ForDevices(
    lambda program, op, devices: op.kind == "chlo.top_k" or _reduces_together(op.kind, op.results),
    lambda devices, module: Pattern(_matches, functools.partial(_rewrite, devices))(module),
)
"""Splits `top_k` and `argmax` in two, where that saves enough."""
