"""Operations that are replaced by others when a program is read, since compilers lack them or since
what they make is known already."""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import filled, find, hlo, ir
from partita.stablehlo.passes.composites import restored
from partita.stablehlo.passes.driver import Pattern, Rewrite, run_checked
from partita.stablehlo.refusals import tensor_type


def expand(module: Any) -> None:
    """Replaces what is written out of other operations, if there is any; in all functions."""
    if find(module.operation, _is_rewritten):
        Pattern(lambda op: op.name in _EXPANSIONS, lambda op: _EXPANSIONS[op.name](op)).run(module)
        hlo.register_stablehlo_passes()
        run_checked(module, f"func.func({','.join(_BY_MLIR)})")


def _is_rewritten(op: Any) -> bool:
    return traits(op.name).treatment == "rewritten"


def _size(op: Any) -> list[Any] | None:
    """The size of a dimension: a constant, if it is one."""
    operand = ir.RankedTensorType(op.operands[0].type)
    dimension = op.attributes["dimension"].value
    if operand.is_dynamic_dim(dimension):
        return None
    return [filled(op.results[0].type, operand.get_dim_size(dimension))]


def _of_stablehlo(constant: Any) -> list[Any]:
    tensor_type(constant.results[0].type)  # complains of others
    return [hlo.constant(constant.attributes["value"])]


def _high_bits_of_product(op: Any) -> list[Any]:
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
        return [hlo.convert(type_, shift(product, filled(wide, element.width)))]
    half, mask = filled(type_, 32), filled(type_, 0xFFFFFFFF)
    (x1, x0), (y1, y0) = ((shift(v, half), hlo.and_(v, mask)) for v in (x, y))
    carried = hlo.shift_right_logical(hlo.multiply(x0, y0), half)
    middle = hlo.add(hlo.multiply(x1, y0), carried)
    other = hlo.add(hlo.multiply(x0, y1), hlo.and_(middle, mask))
    return [hlo.add(hlo.add(hlo.multiply(x1, y1), shift(middle, half)), shift(other, half))]


_BY_MLIR = (
    "stablehlo-legalize-composite-to-call",
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}",
    "stablehlo-canonicalize-dynamism",
)
"""Passes of MLIR that do the same, each for kinds of its own."""

_EXPANSIONS: dict[str, Rewrite] = {
    "arith.constant": _of_stablehlo,
    "chlo.mulhi": _high_bits_of_product,
    "stablehlo.composite": restored,
    "stablehlo.get_dimension_size": _size,
}
"""Table of kinds and what makes their results of other operations; None where that cannot be."""
