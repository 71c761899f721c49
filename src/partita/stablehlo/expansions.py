"""Operations that are replaced by others when a program is read, since compilers lack them or since
what they make is known already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.refusals import tensor_type


def _size(op: Any) -> Any:
    """The size of a dimension: a constant, if it is one."""
    operand = ir.RankedTensorType(op.operands[0].type)
    dimension = op.attributes["dimension"].value
    if operand.is_dynamic_dim(dimension):
        return None
    return _filled(op.results[0].type, operand.get_dim_size(dimension))


def _of_stablehlo(constant: Any) -> Any:
    tensor_type(constant.results[0].type)  # complains of others
    return hlo.constant(constant.attributes["value"])


def _high_bits_of_product(op: Any) -> Any:
    """The upper half of a product: of numbers twice as wide, or from products of their halves.

    Halves as in Warren, Hacker's Delight, section 8-2. XLA compiles the operation for one device
    only: its partitioner cannot read it.
    """
    x, y = op.operands
    type_ = ir.RankedTensorType(x.type)
    element = ir.IntegerType(type_.element_type)
    shift = hlo.shift_right_logical if element.is_unsigned else hlo.shift_right_arithmetic
    if element.width < 64:
        make = ir.IntegerType.get_unsigned if element.is_unsigned else ir.IntegerType.get_signless
        wide = ir.RankedTensorType.get(type_.shape, make(2 * element.width))
        product = hlo.multiply(hlo.convert(wide, x), hlo.convert(wide, y))
        return hlo.convert(type_, shift(product, _filled(wide, element.width)))
    half, mask = _filled(type_, 32), _filled(type_, 0xFFFFFFFF)
    (x1, x0), (y1, y0) = ((shift(v, half), hlo.and_(v, mask)) for v in (x, y))
    carried = hlo.shift_right_logical(hlo.multiply(x0, y0), half)
    middle = hlo.add(hlo.multiply(x1, y0), carried)
    other = hlo.add(hlo.multiply(x0, y1), hlo.and_(middle, mask))
    return hlo.add(hlo.add(hlo.multiply(x1, y1), shift(middle, half)), shift(other, half))


def _filled(type_: Any, number: int) -> Any:
    """A constant of one number throughout."""
    ranked = ir.RankedTensorType(type_)
    element = ir.IntegerAttr.get(ranked.element_type, number)
    return hlo.constant(ir.DenseElementsAttr.get_splat(ranked, element))


_EXPANSIONS: dict[str, Callable[[Any], Any]] = {
    "arith.constant": _of_stablehlo,
    "chlo.mulhi": _high_bits_of_product,
    "stablehlo.get_dimension_size": _size,
}
"""What makes the result of an operation from others; None where it cannot."""


def expand(op: Any) -> None:
    """Replaces an operation by others, if there are any for it."""
    if write := _EXPANSIONS.get(op.name):
        with ir.InsertionPoint(op), op.location:
            result = write(op)
        if result is not None:
            op.results[0].replace_all_uses_with(result)
