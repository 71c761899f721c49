"""`top_k` and `argmax` split in two, so that the dimension can be sharded.

Results of several devices cannot be summed here, so the dimension would have to be gathered.
Instead it is cut into as many parts as a mesh has devices: one operation finds the largest of every
part, a second one the largest of these. The first needs no more than its own part, and what is
gathered for the second is little. Both see elements in the original order, so ties fall as before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from partita.program.ir import Operation, Program
from partita.stablehlo import mlir, tags
from partita.stablehlo.bodies import starts_of_parts, works_in_parts
from partita.stablehlo.building import with_shape
from partita.stablehlo.importer import import_stablehlo
from partita.stablehlo.mlir import chlo, find, hlo, ir

SAVING = 4
"""How many times smaller what the first of the two leaves has to be."""


def split_top_k(program: Program, parts: int) -> Program:
    """The same program with its `top_k` and `argmax` split in two, where that saves enough.

    Args:
      program: as it was read.
      parts: into how many parts a dimension may be cut; fewer where that does not divide it.
    """
    if not any(_cut(program, op, parts) for op in program.operations):
        return program
    with mlir.context():
        module = mlir.parse(program.module)
        found = find(module.operation, lambda op: op.name in _SPLIT)
        for op in found:
            dim = _dimension(op)
            size = ir.RankedTensorType(op.operands[0].type).shape[dim] if dim is not None else 1
            cut = _parts(size, _kept(op), parts)
            if dim is not None and cut > 1:
                with ir.InsertionPoint(op), op.location:
                    results = _SPLIT[op.name](op, dim, cut)
                for old, new in zip(op.results, results, strict=True):
                    old.replace_all_uses_with(new)
                tags.add(results[0].owner, tags.of(op))
                op.erase()
        text = module.operation.get_asm(enable_debug_info=True)
    return read_again(text, program)


def read_again(text: str, original: Program) -> Program:
    """Reads a changed module of a program, of which more is known than the module says.

    Args:
      text: the module; arguments and results are those of the original.
      original: the program as it was.
    """
    hoisted = sum(constant.hoisted for constant in original.constants)
    program = import_stablehlo(text, original.name, hoisted)
    old, new = ((*p.arguments, *p.results) for p in (original, program))
    place = dict(zip(old, new, strict=True))
    return dataclasses.replace(
        program,
        argument_names=original.argument_names,
        result_names=original.result_names,
        roles=original.roles and original.roles.renumbered(place),
        aliases=original.aliases,
        keys=frozenset(place[value] for value in original.keys),
        given=tuple(dataclasses.replace(g, value=place[g.value]) for g in original.given),
        partitioned=original.partitioned,
        platform=original.platform,
        specs=original.specs,
    )


def _cut(program: Program, op: Operation, parts: int) -> bool:
    """Whether an operation of a program would be split."""
    if op.kind not in _SPLIT:
        return False
    operand, result = (program.values[v].type for v in (op.operands[0], op.results[0]))
    if op.kind == "chlo.top_k":
        return _parts(operand.shape[-1], result.shape[-1], parts) > 1
    blocked = [factor for factor in op.rule.factors if factor.kind == "blocked"]
    one_less = len(operand.shape) == len(result.shape) + 1
    return one_less and any(_parts(factor.size, 1, parts) > 1 for factor in blocked)


def _parts(size: int, kept: int, parts: int) -> int:
    """Into how many parts to cut a dimension of which `kept` elements stay; 1 is not at all."""
    parts = math.gcd(size, parts)
    return parts if size >= SAVING * parts * kept else 1


def _dimension(op: Any) -> int | None:
    """The one dimension that an operation orders; None if results of devices can be combined."""
    if op.name == "chlo.top_k":
        return len(ir.RankedTensorType(op.operands[0].type).shape) - 1
    dimensions = list(op.attributes["dimensions"])
    if len(dimensions) != 1 or len(op.results) == 1 or not works_in_parts(op):
        return None
    return int(dimensions[0])


def _kept(op: Any) -> int:
    return int(op.attributes["k"].value) if op.name == "chlo.top_k" else 1


def _reduce(op: Any, dim: int, parts: int) -> list[Any]:
    """A reduction of several operands together, such as values and their positions."""
    count = len(op.results)
    operands, inits = list(op.operands)[:count], list(op.operands)[count:]
    parted = [in_parts(v, dim, parts) for v in operands]
    first = _again(op, parted, starts_of_parts(op), dim + 1)
    return _again(op, first, inits, dim)


def _again(op: Any, operands: list[Any], inits: list[Any], dim: int) -> list[Any]:
    """The same reduction, of other operands along another dimension."""
    copy = op.clone()
    for number, value in enumerate([*operands, *inits]):
        copy.operands[number] = value
    copy.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([dim])
    for result, operand in zip(copy.results, operands, strict=True):
        shape = list(ir.RankedTensorType(operand.type).shape)
        result.set_type(with_shape(operand, [*shape[:dim], *shape[dim + 1 :]]))
    return list(copy.results)


def _top_k(op: Any, dim: int, parts: int) -> list[Any]:
    """The largest of every part, with their places in the dimension, then the largest of these."""
    k = _kept(op)
    values, places = chlo.top_k(in_parts(op.operands[0], dim, parts), k)
    size = ir.RankedTensorType(op.operands[0].type).shape[dim]
    i32 = ir.RankedTensorType(places.type)
    width = ir.IntegerAttr.get(i32.element_type, size // parts)
    starts = hlo.multiply(
        hlo.iota(i32, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)),
        hlo.constant(ir.DenseElementsAttr.get_splat(i32, width)),
    )
    places = hlo.add(places, starts)
    shape = [*i32.shape[:dim], parts * k]
    values, places = (hlo.reshape(with_shape(v, shape), v) for v in (values, places))
    best, where = chlo.top_k(values, k)
    return [best, _take_along(places, where, dim)]


def _take_along(values: Any, places: Any, dim: int) -> Any:
    """The elements of the last dimension of `values` at `places`, row by row."""
    rows = list(range(dim))
    shape = list(ir.RankedTensorType(places.type).shape)
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


def in_parts(value: Any, dim: int, parts: int) -> Any:
    """A value with a dimension cut into so many parts."""
    shape = list(ir.RankedTensorType(value.type).shape)
    shape[dim : dim + 1] = [parts, shape[dim] // parts]
    return hlo.reshape(with_shape(value, shape), value)


_SPLIT: dict[str, Callable[[Any, int, int], list[Any]]] = {
    "stablehlo.reduce": _reduce,
    "chlo.top_k": _top_k,
}
"""How an operation is split, along a dimension and in so many parts."""
