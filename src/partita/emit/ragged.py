"""Device-local form of a product with ragged groups: other group sizes.

A device that has some of the rows has, of each group, the rows in its shard. A device that has some
of the groups moves the rows of its first group to the start. Rows of other groups contribute
nothing to its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.emit.builder import Builder
from partita.emit.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.rules.ragged import Ragged


def ragged_dot(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Each device has its own group sizes."""
    form, outputs, numbers = run.form, run.outputs, Ragged.of(op)
    rows = form.needs[0][numbers.rows]
    groups = form.makes[0][0] if numbers.contracts_rows else ()
    if numbers.groups is not None:
        groups = form.needs[1][numbers.groups]
    if not rows and not groups:
        return build.place(op, outputs)
    left, _, sizes = op.operands
    integer = sizes.type
    count = ir.RankedTensorType(left.type).shape[numbers.rows]
    sizes = hlo.convert(_shaped(sizes, ir.IntegerType.get_signless(32)), sizes)
    ends = _sums_so_far(sizes, build)
    starts = hlo.subtract(ends, sizes)
    if rows:
        first = build.propagation(build.offset(rows, count), starts)
        low, high = build.fill(starts.type, 0), build.fill(starts.type, count)
        starts, ends = (hlo.clamp(low, hlo.subtract(each, first), high) for each in (starts, ends))
    if not groups:
        op.operands[2] = hlo.convert(integer, hlo.subtract(ends, starts))
        return build.place(op, outputs)
    own = ir.RankedTensorType(sizes.type).shape[0] // build.mesh.size(groups)
    at = {0: build.offset(groups, own)}
    starts, ends = (build.slice(each, (own,), at) for each in (starts, ends))
    own_sizes = hlo.subtract(ends, starts)
    op.operands[2] = hlo.convert(ir.RankedTensorType.get([own], _element(integer)), own_sizes)
    before = _scalar(build.slice(starts, (1,), {}))
    op.operands[0] = _rolled(left, numbers.rows, before, build)
    if numbers.contracts_rows:
        dim = numbers.rows_of_second
        op.operands[1] = _rolled(op.operands[1], dim, before, build)
        return build.place(op, outputs)
    (result,) = build.place(op, outputs)
    dim = len(numbers.batch[0]) + _place_of_rows(numbers)
    last = hlo.subtract(_scalar(build.slice(ends, (1,), {0: build.scalar(own - 1)})), before)
    result = _first_rows(result, dim, last, build)
    return [_rolled(result, dim, hlo.subtract(build.scalar(count), before), build)]


def _place_of_rows(numbers: Ragged) -> int:
    """Returns the position of the rows among the result's non-batch dimensions."""
    taken = {*numbers.batch[0], *numbers.contracted[0]}
    return sum(dim not in taken for dim in range(numbers.rows))


def _rolled(value: Any, dim: int, start: Any, build: Builder) -> Any:
    """Rolls a value along a dimension so that it begins at `start`."""
    i64 = ir.IntegerType.get_signless(64)
    twice = hlo.concatenate([value, value], ir.IntegerAttr.get(i64, dim))
    return build.slice(twice, ir.RankedTensorType(value.type).shape, {dim: start})


def _first_rows(value: Any, dim: int, count: Any, build: Builder) -> Any:
    """A value, zero from the index `count` of a dimension on."""
    i64 = ir.IntegerType.get_signless(64)
    place = hlo.iota(_shaped(value, ir.IntegerType.get_signless(32)), ir.IntegerAttr.get(i64, dim))
    inside = build.compare(place, build.propagation(count, place), "LT")
    return hlo.select(inside, value, build.fill(value.type, 0))


def _sums_so_far(sizes: Any, build: Builder) -> Any:
    """The sum of each size of a vector and of all before it."""
    (count,) = ir.RankedTensorType(sizes.type).shape
    i64, element = ir.IntegerType.get_signless(64), _element(sizes.type)
    square = ir.RankedTensorType.get([count, count], element)
    row, column = (hlo.iota(square, ir.IntegerAttr.get(i64, dim)) for dim in (0, 1))
    terms = hlo.broadcast_in_dim(square, sizes, ir.DenseI64ArrayAttr.get([1]))
    terms = hlo.select(build.compare(column, row, "LE"), terms, build.fill(square, 0))
    return build.total(terms, 1)


def _scalar(value: Any) -> Any:
    return hlo.reshape(ir.RankedTensorType.get([], _element(value.type)), value)


def _shaped(like: Any, element: Any) -> Any:
    """The type of a tensor of that shape with these elements."""
    return ir.RankedTensorType.get(list(ir.RankedTensorType(like.type).shape), element)


def _element(type_: Any) -> Any:
    return ir.RankedTensorType(type_).element_type
