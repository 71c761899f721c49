"""Cumulative sums and the like split in two, so that the dimension can be sharded.

`cumsum`, `cumprod`, `cummax`, `cummin` and `cumlogsumexp` are windows that reach to the beginning
of the dimension, or to its end, so each device would need all of it. Instead the dimension is cut
into as many parts as a mesh has devices: each part is accumulated by itself, and to its elements
comes what has been accumulated before it. For that one element of every part is exchanged.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from partita.program.op_traits import traits
from partita.stablehlo.bodies import neutral
from partita.stablehlo.building import again, cut, shape_of, with_shape
from partita.stablehlo.manual_regions import is_manual
from partita.stablehlo.mlir import hlo, ir, number_of, origin
from partita.stablehlo.operations.windows import Slide, paddings, slides
from partita.stablehlo.passes.driver import ForDevices, Pattern
from partita.stablehlo.passes.parts import in_parts, parts_of
from partita.stablehlo.refusals import tensor_type

_KIND = "stablehlo.reduce_window"


def _matches(op: Any) -> bool:
    return op.name == _KIND and not is_manual(op)


def _rewrite(devices: int, op: Any) -> list[Any] | None:
    dim = accumulated(op)
    if dim is None:
        return None
    parts = parts_of(shape_of(op.operands[0])[dim], devices)
    return [_split(op, dim, parts)] if parts > 1 else None


def accumulated(op: Any) -> int | None:
    """The one dimension along which an operation accumulates; None if it does anything else."""
    if len(op.results) != 1 or not _starts_neutral(op):
        return None
    types = [tensor_type(v.type) for v in (op.operands[0], op.results[0])]
    found = None
    for dim, slide in enumerate(slides(op, types[:1], types[1:])):
        size = slide.size
        if slide == Slide(size, 1, size):
            continue
        if found is not None or slide.low not in (0, size - 1):
            return None
        if slide != Slide(size, size, size, low=slide.low):
            return None
        found = dim
    return found


def _starts_neutral(op: Any) -> bool:
    """Returns whether the initial value is neutral, so that it may be used several times."""
    start = origin(op.operands[1])
    number = number_of(start)
    if number is None:
        return False
    body = [inner.operation.name.rpartition(".")[2] for inner in op.regions[0].blocks[0].operations]
    if not all(traits(f"stablehlo.{name}").elementwise for name in body[:-1]):
        return False
    if len(body) > 2:  # the logarithm of a sum of exponentials
        sums = {"maximum", "exponential", "log_plus_one", "add"} <= set(body)
        return sums and bool(number == -math.inf)
    expected = neutral(op)
    if expected is not None and expected > number == -1:  # so MLIR gives the largest unsigned one
        return str(ir.RankedTensorType(start.type).element_type).startswith("ui")
    return bool(number == expected)


def _split(op: Any, dim: int, parts: int) -> Any:
    """Accumulates each part, then combines it with the accumulation of all parts before it."""
    operand, start = op.operands
    size = shape_of(operand)[dim]
    backward = not paddings(op, len(shape_of(operand)))[2 * dim]
    own = size // parts
    inner = accumulate(op, in_parts(operand, dim, parts), start, dim + 1, own - 1, backward)
    last = 0 if backward else own - 1
    totals = cut(inner, dim + 1, last, last + 1)
    shape = shape_of(totals)
    totals = hlo.reshape(with_shape(totals, shape[: dim + 1] + shape[dim + 2 :]), totals)
    # What there is before each part, and in the end all of it, which no part goes on from.
    before = accumulate(op, totals, start, dim, parts, backward)
    before = cut(before, dim, 1, parts + 1) if backward else cut(before, dim, 0, parts)
    dims = [d for d in range(len(shape)) if d != dim + 1]
    before = hlo.broadcast_in_dim(inner.type, before, ir.DenseI64ArrayAttr.get(dims))
    pair = (inner, before) if backward else (before, inner)
    return hlo.reshape(op.results[0].type, _combined(op, *pair))


def accumulate(op: Any, value: Any, start: Any, dim: int, reach: int, backward: bool) -> Any:
    """The same as an operation does, along another dimension.

    Each result is of the element at its place and of `reach` before it (`backward`, behind it); a
    reach as long as the dimension leaves out the element itself, and adds a result of all.
    """
    shape = shape_of(value)
    rank, size = len(shape), shape[dim]
    padding: Any = np.zeros((rank, 2), np.int64)
    padding[dim, int(backward)] = reach
    window = [size if d == dim else 1 for d in range(rank)]
    shape[dim] = reach + 1
    made = ir.Operation.create(
        _KIND,
        results=[with_shape(value, shape)],
        operands=[value, start],
        attributes={
            "window_dimensions": ir.DenseI64ArrayAttr.get(window),
            "padding": ir.DenseElementsAttr.get(padding),
        },
        regions=1,
    )
    scalars = [argument.type for argument in op.regions[0].blocks[0].arguments]
    block = made.regions[0].blocks.append(*scalars)
    with ir.InsertionPoint(block):
        hlo.return_([_combined(op, *block.arguments)])
    return made.results[0]


def _combined(op: Any, a: Any, b: Any) -> Any:
    """Applies the body of an operation to two values of any shape."""
    block = op.regions[0].blocks[0]
    known = dict(zip(block.arguments, (a, b), strict=True))
    shape = shape_of(a)
    *inside, returned = [view.operation for view in block.operations]
    for each in inside:
        (known[each.results[0]],) = again(each, [known[v] for v in each.operands], shape)
    return known[returned.operands[0]]


split_prefix = ForDevices(
    lambda program, op, devices: op.kind == _KIND,
    lambda devices, module: Pattern(_matches, functools.partial(_rewrite, devices))(module),
)
"""Splits cumulative sums in two, where the dimension divides."""
