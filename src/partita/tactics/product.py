"""Products as XLA's partitioner sees them: the layouts of both operands and of the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partita.program import Operation, Program
from partita.tiling import Axes, Layout


@dataclasses.dataclass(frozen=True)
class Product:
    """A product, as far as it matters how it is partitioned. Sizes are bytes of whole tensors."""

    lhs: Layout
    """The axes of every factor, as the left operand has them."""
    rhs: Layout
    result: Layout
    summed: frozenset[int]
    """The factors that are summed over."""
    sizes: tuple[int, int, int]
    """Layouts of both operands and the result."""

    @property
    def sides(self) -> tuple[Layout, Layout, Layout]:
        """The three layouts."""
        return self.lhs, self.rhs, self.result

    def factors(self, axis: int) -> tuple[int | None, int | None, int | None]:
        """The factor that an axis splits, in each of the three layouts."""
        left, right, result = (_place(side, axis) for side in self.sides)
        return left, right, result

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes that split any of the three."""
        return tuple(sorted({a for side in self.sides for axes in side for a in axes}))


def is_product(op: Operation) -> bool:
    """Returns whether the partitioner treats an operation as a product; convolutions are not."""
    return op.traits.product and not op.traits.convolution and len(op.operands) == 2


def product_of(op: Operation, program: Program, values: Sequence[Layout]) -> Product:
    """A product operation, given the layout of every value."""
    kinds = [factor.kind for factor in op.rule.factors]

    def side(value: int, dims: Sequence[tuple[int, ...]]) -> Layout:
        found: list[Axes] = [()] * len(kinds)
        for factor, axes in carried(op, dims, values[value]):
            found[factor] = axes
        return tuple(found)

    tensors = (*op.operands, op.results[0])
    rules = (*op.rule.operands, op.rule.results[0])
    sides = [side(value, dims) for value, dims in zip(tensors, rules, strict=True)]
    sizes = [program.values[value].type.bytes for value in tensors]
    return Product(
        sides[0],
        sides[1],
        sides[2],
        frozenset(n for n, kind in enumerate(kinds) if kind == "reduction"),
        (sizes[0], sizes[1], sizes[2]),
    )


def carried(
    op: Operation, dims: Sequence[tuple[int, ...]], layout: Layout
) -> list[tuple[int, Axes]]:
    """The factors that carry the shards of a tensor in an operation, with their axes."""
    found = []
    for dim, axes in zip(dims, layout, strict=True):
        factor = op.rule.leading(dim)
        if factor is not None and axes:
            found.append((factor, axes))
    return found


def _place(layout: Layout, axis: int) -> int | None:
    return next((n for n, axes in enumerate(layout) if axis in axes), None)
