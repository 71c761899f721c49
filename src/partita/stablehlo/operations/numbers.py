"""Dimension numbers that look-ups and scatters have in common, whatever StableHLO calls them.

Both have an operand, vectors of indices, and windows: dimensions of what a look-up makes or of what
a scatter writes. Letters and new numbers follow from these alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from partita.stablehlo.mlir import hlo
from partita.stablehlo.operations.letters import FIXED, Letter, SizesOf, becoming, flat, shape


class _Form(NamedTuple):
    """Attribute that holds such numbers: its name, its class, and its names of the fields."""

    key: str
    attribute: Any
    fields: tuple[str, ...]

    def of(self, numbers: Numbers) -> Any:
        values = dataclasses.astuple(numbers)
        return self.attribute.get(**dict(zip(self.fields, values, strict=True)))


_GATHER = _Form(
    "dimension_numbers",
    hlo.GatherDimensionNumbers,
    (
        *("offset_dims", "collapsed_slice_dims", "operand_batching_dims"),
        *("start_indices_batching_dims", "start_index_map", "index_vector_dim"),
    ),
)
_SCATTER = _Form(
    "scatter_dimension_numbers",
    hlo.ScatterDimensionNumbers,
    (
        *("update_window_dims", "inserted_window_dims", "input_batching_dims"),
        *("scatter_indices_batching_dims", "scattered_dims_to_operand_dims", "index_vector_dim"),
    ),
)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Dimension numbers of a look-up or a scatter."""

    windows: list[int]
    """Dimensions of the values at the indices along which windows extend."""
    dropped: list[int]
    """Dimensions of the operand that windows do not have: they are one index wide."""
    batch: list[int]
    """Batch dimensions of the operand."""
    batch_of_indices: list[int]
    indexed: list[int]
    """Dimension of the operand for each component of an index vector."""
    vector: int
    """Dimension of the indices that has the components; their rank if each index is alone."""

    @classmethod
    def of(cls, op: Any) -> Numbers:
        """Reads the numbers of an MLIR operation."""
        form = _form(op)
        held = form.attribute(op.attributes[form.key])
        *lists, vector = (getattr(held, name) for name in form.fields)
        windows, dropped, batch, batch_of_indices, indexed = map(list, lists)
        return cls(windows, dropped, batch, batch_of_indices, indexed, vector)

    def of_gather(self) -> Any:
        """The attribute of a look-up with these numbers."""
        return _GATHER.of(self)

    def window_dims(self, rank: int) -> dict[int, int]:
        """Returns the dimensions of an operand of this rank along which windows extend, each with
        that of the values at the indices."""
        apart = {*self.dropped, *self.batch}
        return dict(zip((d for d in range(rank) if d not in apart), self.windows, strict=True))

    def batch_dims(self, rank: int) -> list[int]:
        """Returns the dimensions of the values, of this rank, whose every index is a window of its
        own."""
        return [dim for dim in range(rank) if dim not in self.windows]

    def letters(
        self, operand: Any, indices: Any, values: Any
    ) -> tuple[tuple[Letter, ...], tuple[Letter, ...], tuple[Letter, ...]]:
        """Returns letters for the operand, the indices and the values at these.

        They name rows of indices, and what is read or written in full at each.
        """
        whole, parts = shape(operand), shape(values)
        rows = [FIXED if d == self.vector else f"i{d}" for d in range(len(shape(indices)))]
        table: list[Letter] = [FIXED] * len(whole)
        made: list[Letter] = [FIXED] * len(parts)
        for mine, other in zip(self.batch, self.batch_of_indices, strict=True):
            table[mine] = rows[other]
        for dim, place in self.window_dims(len(whole)).items():
            if parts[place] == whole[dim] and dim not in self.indexed:
                table[dim] = made[place] = f"o{dim}"
        names = [name for dim, name in enumerate(rows) if dim != self.vector]
        for place, name in zip(self.batch_dims(len(parts)), names, strict=True):
            made[place] = name
        return tuple(table), tuple(rows), tuple(made)

    def write(self, op: Any, sizes_of: SizesOf, operand: Any, indices: Any, values: Any) -> None:
        """Writes the numbers to an operation as they are when dimensions become several."""
        table, rows, made = (becoming(sizes_of(value)) for value in (operand, indices, values))
        renumbered = Numbers(
            windows=flat(made[dim] for dim in self.windows),
            dropped=flat(table[dim] for dim in self.dropped),
            batch=flat(table[dim] for dim in self.batch),
            batch_of_indices=flat(rows[dim] for dim in self.batch_of_indices),
            indexed=flat(table[dim] for dim in self.indexed),
            vector=[*rows, [len(flat(rows))]][self.vector][0],
        )
        form = _form(op)
        op.attributes[form.key] = form.of(renumbered)


def _form(op: Any) -> _Form:
    return _GATHER if _GATHER.key in op.attributes else _SCATTER
