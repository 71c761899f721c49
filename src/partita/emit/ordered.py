"""Floats as integers of the same order: maxima and minima that keep NaN.

The bits of a float are a sign and a magnitude; narrow floats are widened first, which is exact.
Where the sign is set, turning all other bits over makes them a signed integer, and integers are
ordered as the floats were. NaN, whatever its bits, becomes the largest integer for a maximum and
the smallest for a minimum; both are NaN again when they are turned back. Of zeros the negative one
is the smaller.
"""

from __future__ import annotations

from typing import Any

from partita.program.combining import travels_as
from partita.program.ir import bits
from partita.stablehlo.builder import Builder
from partita.stablehlo.mlir import hlo, ir


def as_ordered(build: Builder, value: Any, combine: str) -> Any:
    """Returns a value in the form in which devices combine it: floats that may be NaN as integers.

    Args:
      build: builder at the place where it is computed.
      value: of any type that devices can combine this way.
      combine: how it will be combined.
    """
    dtype = str(ir.RankedTensorType(value.type).element_type)
    moved = travels_as(dtype, combine)
    if moved == dtype:
        return value
    width = bits(moved)
    floats = _converted(value, f"f{width}")
    ordered = _turned(build, hlo.bitcast_convert(_type(value, moved), floats))
    last = 2 ** (width - 1) - 1
    extreme = build.fill(ordered.type, last if combine == "max" else -last - 1)
    return hlo.select(build.compare(floats, floats, "NE"), extreme, ordered)


def as_made(build: Builder, value: Any, dtype: str) -> Any:
    """Converts the result of `as_ordered` back to this element type."""
    moved = str(ir.RankedTensorType(value.type).element_type)
    if moved == dtype:
        return value
    floats = hlo.bitcast_convert(_type(value, f"f{bits(moved)}"), _turned(build, value))
    return _converted(floats, dtype)


def reduced(build: Builder, op: Any, combine: str) -> Any:
    """Places a reduction or scatter that takes extremes of floats as one of ordered integers.

    For a partitioner that will have devices combine what they make of it.

    Args:
      build: whose body it goes to the end of.
      op: with one result, its operands in place.
      combine: what its body does.

    Returns:
      its result, in floats again.
    """
    (result,) = op.results
    dtype = str(ir.RankedTensorType(result.type).element_type)
    for number in (0, len(op.operands) - 1):  # between them are indices, if anything
        op.operands[number] = as_ordered(build, op.operands[number], combine)
    build.body.append(op)
    block = op.regions[0].blocks[0]
    for inside in (*block.arguments, *block.operations[0].results, result):
        inside.set_type(_type(inside, travels_as(dtype, combine)))
    return as_made(build, result, dtype)


def _type(value: Any, dtype: str) -> Any:
    """The type of a value with elements of another type."""
    shape = list(ir.RankedTensorType(value.type).shape)
    return ir.RankedTensorType.get(shape, ir.Type.parse(dtype))


def _converted(value: Any, dtype: str) -> Any:
    type_ = _type(value, dtype)
    return value if type_ == value.type else hlo.convert(type_, value)


def _turned(build: Builder, integers: Any) -> Any:
    """Integers with all bits but the sign turned over where that is set; twice is not at all."""
    width = ir.IntegerType(ir.RankedTensorType(integers.type).element_type).width
    signs = hlo.shift_right_arithmetic(integers, build.fill(integers.type, width - 1))
    return hlo.xor(integers, hlo.shift_right_logical(signs, build.fill(integers.type, 1)))
