"""Small parts of StableHLO, built at the current insertion point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.stablehlo.mlir import filled, hlo, ir


def i64(value: int) -> Any:
    """A 64-bit integer attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def shape_of(value: Any) -> list[int]:
    """The sizes of a value's dimensions."""
    return list(ir.RankedTensorType(value.type).shape)


def with_shape(value: Any, shape: Sequence[int]) -> Any:
    """The type of a tensor with the elements of a value, in another shape."""
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)


def again(op: Any, operands: Sequence[Any], *shapes: Sequence[int]) -> list[Any]:
    """The results of the same operation of other operands, which give results of these shapes."""
    copy = op.clone()
    for number, value in enumerate(operands):
        copy.operands[number] = value
    for result, shape in zip(copy.results, shapes, strict=True):
        result.set_type(with_shape(result, shape))
    return list(copy.results)


def bounds_of(op: Any) -> tuple[list[int], list[int], list[int]]:
    """The starts, limits and strides of a slice, each by dimension."""
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (list(op.attributes[name]) for name in names)
    return starts, limits, strides


def sliced(value: Any, *bounds: Sequence[int]) -> Any:
    """A slice of a value, with such bounds."""
    return hlo.slice(value, *map(ir.DenseI64ArrayAttr.get, bounds))


def cut(value: Any, dim: int, start: int, stop: int, stride: int = 1) -> Any:
    """The indices from `start` to before `stop` of one dimension, every `stride`-th."""
    limits = shape_of(value)
    if (start, stop, stride) == (0, limits[dim], 1):
        return value
    starts, strides = [0] * len(limits), [1] * len(limits)
    starts[dim], limits[dim], strides[dim] = start, stop, stride
    return sliced(value, starts, limits, strides)


def padded(
    value: Any, dim: int, low: int, high: int, interior: int = 0, fill: Any | None = None
) -> Any:
    """A value with zeros, or a scalar, around its elements in a dimension; cut off if negative."""
    if not low and not high and not interior:
        return value
    ranked = ir.RankedTensorType(value.type)
    widths = [[0] * ranked.rank for _ in range(3)]
    widths[0][dim], widths[1][dim], widths[2][dim] = low, high, interior
    if fill is None:
        fill = filled(ir.RankedTensorType.get([], ranked.element_type), 0)
    return hlo.pad(value, fill, *map(ir.DenseI64ArrayAttr.get, widths))


def joined(values: list[Any], dim: int) -> Any:
    """Values one after the other along a dimension."""
    return values[0] if len(values) == 1 else hlo.concatenate(values, i64(dim))


def within(type_: Any, dim: int, begin: Any, end: Any, apart: int = 1) -> Any:
    """Returns a mask of the elements from `begin` to before `end` in a dimension.

    Args:
      type_: the type of the tensor that the mask is for.
      dim: the dimension.
      begin: a number, or an i32 scalar.
      end: the same.
      apart: every so many elements only, from `begin` on.
    """
    shape = list(ir.RankedTensorType(type_).shape)
    line = ir.RankedTensorType.get([shape[dim]], ir.IntegerType.get_signless(32))
    at = hlo.iota(line, i64(0))
    first, last = (_along(line, bound) for bound in (begin, end))
    inside = hlo.and_(_compare(at, first, "GE"), _compare(at, last, "LT"))
    if apart > 1:
        rest = hlo.remainder(hlo.subtract(at, first), filled(line, apart))
        inside = hlo.and_(inside, _compare(rest, filled(line, 0), "EQ"))
    mask = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(1))
    return hlo.broadcast_in_dim(mask, inside, ir.DenseI64ArrayAttr.get([dim]))


def _along(line: Any, bound: Any) -> Any:
    if isinstance(bound, int):
        return filled(line, bound)
    return hlo.broadcast_in_dim(line, bound, ir.DenseI64ArrayAttr.get([]))


def _compare(a: Any, b: Any, direction: str) -> Any:
    return hlo.compare(a, b, hlo.ComparisonDirectionAttr.get(direction))
