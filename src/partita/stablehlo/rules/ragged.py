"""Products with ragged groups (`jax.lax.ragged_dot`): rows of one operand, a weight for each group.

The rows of a group are adjacent, and their number is known only when the program runs.
Three sorts differ in where the ragged dimension is: rows of the result (the product of
tokens with their experts), what is contracted (the gradient of the experts, which results have as
groups), or a batch (groups then make no difference).

Where rows or groups are split, devices need only other group sizes: see `partita.emit.ragged`.
Groups are summed over where the result has none, as each device contributes the rows of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partita.program.ir import TensorType
from partita.stablehlo.mlir import chlo


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


def ragged_dot(op: Any, operands: Sequence[TensorType], results: Sequence[TensorType]) -> str:
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
