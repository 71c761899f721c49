"""Products with ragged groups (`jax.lax.ragged_dot`): rows of one operand, a weight for each group.

The rows of a group are adjacent, and their number is known only when the program runs.
Three sorts differ in where the ragged dimension is: rows of the result (the product of
tokens with their experts), what is contracted (the gradient of the experts, which results have as
groups), or a batch (groups then make no difference).

Where rows or groups are split, devices need only other group sizes: see `_local`.
Groups are summed over where the result has none, as each device contributes the rows of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partita.stablehlo.builder import Builder
from partita.stablehlo.building import i64
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import chlo, hlo, ir
from partita.stablehlo.operations.entry import Entry, Types


@dataclasses.dataclass(frozen=True)
class Ragged:
    """The dimension numbers of a product with ragged groups."""

    batch: tuple[tuple[int, ...], tuple[int, ...]]
    """Batch dimensions of each operand."""
    contracted: tuple[tuple[int, ...], tuple[int, ...]]
    rows: int
    """The ragged dimension of the first operand."""
    groups: int | None
    """The dimension of the second operand that groups have; None if only the result has one."""

    @classmethod
    def of(cls, op: Any) -> Ragged:
        """Reads the dimension numbers of an MLIR operation."""
        numbers: Any = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
        groups = list(numbers.rhs_group_dimensions)
        return cls(
            (tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)),
            (tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)),
            numbers.lhs_ragged_dimensions[0],
            groups[0] if groups else None,
        )

    @property
    def contracts_rows(self) -> bool:
        """Returns whether the ragged dimension is contracted."""
        return self.rows in self.contracted[0]

    @property
    def rows_of_second(self) -> int:
        """The dimension of the second operand that is ragged, where it is contracted."""
        return self.contracted[1][self.contracted[0].index(self.rows)]


def _own(op: Any, operands: Types, results: Types) -> str:
    """The rule as text, as `notation` reads it."""
    numbers = Ragged.of(op)
    names: tuple[dict[int, str], dict[int, str]] = {}, {}
    for kind, pair in (("b", numbers.batch), ("k", numbers.contracted)):
        for place, dims in enumerate(zip(*pair, strict=True)):
            for side, dim in zip(names, dims, strict=True):
                side[dim] = f"{kind}{place}" + ("+" if kind == "k" else "")
    if numbers.groups is not None:
        names[1][numbers.groups] = "groups+"
    left, right = (
        [side.get(dim, f"{own}{dim}") for dim in range(len(type_.shape))]
        for own, side, type_ in zip("mn", names, operands, strict=False)
    )
    batch = [f"b{place}" for place in range(len(numbers.batch[0]))]
    free = [name for side in (left, right) for name in side if name[0] in "mn"]
    made = [*(["groups"] if numbers.contracts_rows else []), *batch, *free]
    sizes = _sizes(numbers, left, len(operands[2].shape))
    if len(sizes) > 1:  # other rows in each example: they do not lie alike in all of them
        fixed = {left[numbers.rows].rstrip("+"), "groups"}
        left, right, made = (
            [f"{n.rstrip('+')}!" if n.rstrip("+") in fixed else n for n in side]
            for side in (left, right, made)
        )
    return f"{', '.join(map(' '.join, (left, right, sizes)))} -> {' '.join(made)}"


def _sizes(numbers: Ragged, left: Sequence[str], rank: int) -> list[str]:
    """The dimensions of the group sizes: those of the first operand that come before, and one."""
    if rank == 1:
        return ["."]
    (batch, _), (contracted, _) = numbers.batch, numbers.contracted
    others = [d for d in range(len(left)) if d not in (*batch, *contracted)]
    order = [*batch, *(contracted if numbers.contracts_rows else others)]
    return [*(left[dim] for dim in order[: order.index(numbers.rows)]), "."]


def _local(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Each device has its own group sizes."""
    outputs, numbers = run.outputs, Ragged.of(op)
    rows = run.needs[0][numbers.rows]
    groups = run.makes[0][0] if numbers.contracts_rows else ()
    if numbers.groups is not None:
        groups = run.needs[1][numbers.groups]
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
    twice = hlo.concatenate([value, value], i64(dim))
    return build.slice(twice, ir.RankedTensorType(value.type).shape, {dim: start})


def _first_rows(value: Any, dim: int, count: Any, build: Builder) -> Any:
    """A value, zero from the index `count` of a dimension on."""
    place = hlo.iota(_shaped(value, ir.IntegerType.get_signless(32)), i64(dim))
    inside = build.compare(place, build.propagation(count, place), "LT")
    return hlo.select(inside, value, build.fill(value.type, 0))


def _sums_so_far(sizes: Any, build: Builder) -> Any:
    """The sum of each size of a vector and of all before it."""
    (count,) = ir.RankedTensorType(sizes.type).shape
    element = _element(sizes.type)
    square = ir.RankedTensorType.get([count, count], element)
    row, column = (hlo.iota(square, i64(dim)) for dim in (0, 1))
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


ENTRIES = {"chlo.ragged_dot": Entry(own=_own, local=_local)}
"""Entry of products with ragged groups."""
