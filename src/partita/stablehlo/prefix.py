"""Cumulative sums and the like split in two, so that the dimension can be sharded.

`cumsum`, `cumprod`, `cummax`, `cummin` and `cumlogsumexp` are windows that reach to the beginning
of the dimension, or to its end, so each device would need all of it. Instead the dimension is cut
into as many parts as a mesh has devices: each part is accumulated by itself, and to its elements
comes what has been accumulated before it. For that one element of every part is exchanged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.program.ir import Operation, Program
from partita.program.op_traits import traits
from partita.stablehlo import mlir, tags
from partita.stablehlo.bodies import neutral
from partita.stablehlo.building import cut, shape_of, with_shape
from partita.stablehlo.manual_regions import is_manual
from partita.stablehlo.mlir import find, hlo, ir
from partita.stablehlo.refusals import tensor_type
from partita.stablehlo.rules.windows import Slide, paddings, slides
from partita.stablehlo.top_k import SAVING, in_parts, read_again

_KIND = "stablehlo.reduce_window"


def split_prefix(program: Program, parts: int) -> Program:
    """The same program with its cumulative sums split in two, where the dimension divides.

    Args:
      program: as it was read.
      parts: into how many parts a dimension may be cut; fewer where that does not divide it.
    """
    if not any(_may_be_cut(program, op, parts) for op in program.operations):
        return program
    with mlir.context():
        module = mlir.parse(program.module)
        found = find(module.operation, lambda op: op.name == _KIND and not is_manual(op))
        for op in found:
            dim = accumulated(op)
            size = 1 if dim is None else ir.RankedTensorType(op.operands[0].type).shape[dim]
            count = _parts(size, parts)
            if dim is not None and count > 1:
                with ir.InsertionPoint(op), op.location:
                    made = _split(op, dim, count)
                op.results[0].replace_all_uses_with(made)
                tags.add(made.owner, tags.of(op))
                op.erase()
        text = module.operation.get_asm(enable_debug_info=True)
    return read_again(text, program)


def _may_be_cut(program: Program, op: Operation, parts: int) -> bool:
    """Whether an operation of a program might be split, as far as its rule says."""
    blocked = (f.size for f in op.rule.factors if f.kind == "blocked")
    return op.kind == _KIND and any(_parts(size, parts) > 1 for size in blocked)


def _parts(size: int, parts: int) -> int:
    """Into how many parts to cut a dimension; 1 is not at all."""
    parts = math.gcd(size, parts)
    return parts if size >= SAVING * parts else 1


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
    """Whether the initial value changes nothing, so that it may be there several times."""
    start = op.operands[1]
    while isinstance(start, ir.OpResult) and traits(start.owner.name).keeps_zeros:
        start = start.owner.operands[0]
    known = isinstance(start, ir.OpResult) and traits(start.owner.name).constant
    number = getattr(mlir.splat(start.owner), "value", None) if known else None
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
    """Accumulates each part, then goes on from what has been accumulated before it."""
    operand, start = op.operands
    size = shape_of(operand)[dim]
    backward = not paddings(op, len(shape_of(operand)))[2 * dim]
    own = size // parts
    inner = accumulate(op, in_parts(operand, dim, parts), start, dim + 1, own - 1, backward)
    last = 0 if backward else own - 1
    totals = cut(inner, dim + 1, last, last + 1)
    shape = list(ir.RankedTensorType(totals.type).shape)
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
    shape = list(ir.RankedTensorType(value.type).shape)
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
    """What the body of an operation makes of two values of any shape."""
    block = op.regions[0].blocks[0]
    known = dict(zip(block.arguments, (a, b), strict=True))
    shape = list(ir.RankedTensorType(a.type).shape)
    *inside, returned = [view.operation for view in block.operations]
    for each in inside:
        copy = each.clone()
        for number, value in enumerate(each.operands):
            copy.operands[number] = known[value]
        copy.results[0].set_type(with_shape(each.results[0], shape))
        known[each.results[0]] = copy.results[0]
    return known[returned.operands[0]]
