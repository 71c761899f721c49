"""What it takes to copy an array from one place in memory to another, or into another order.

Vector units do it, a tile at a time: elements narrower than those that they work on take as long as
these, and every tile takes some time besides its rows. So an array of bfloat16 takes as long as one
of float32, and one that lies in tiles of two rows 2.6 times as long as one in tiles of eight.
"""

from __future__ import annotations

from partita.cost.hardware import TileShape, VectorUnit
from partita.cost.layers import Copied, Copy, Filled, Laid, Used
from partita.program.ir import TensorType, bits


class Copying:
    """Seconds of copies."""

    def __init__(self, unit: VectorUnit, tile: TileShape, bandwidth: float) -> None:
        """Takes the figures.

        Args:
          unit: what copies.
          tile: full tiles of memory.
          bandwidth: bytes/s that kernels read and write.
        """
        self._narrowest = unit.narrowest.value
        self._rows = int(tile.rows.value)
        self._columns = int(tile.columns.value)
        self._start = unit.tile_rows.value
        self._product = unit.product.value
        self._bandwidth = bandwidth

    def seconds(self, copy: Copy, type_: TensorType) -> float:
        """How long a copy takes, beyond what other kernels read and write of it anyway.

        Args:
          copy: what is copied.
          type_: of what a device has of it.
        """
        match copy:
            case Laid():
                return self._laid(copy, type_)
            case Filled():
                return self._filled(copy, type_)
            case Copied():
                return self._copied(copy, type_)

    def _copied(self, copy: Copied, type_: TensorType) -> float:
        if copy.batch is not None and self._comes_first(copy.batch, type_.shape):
            return 0.0
        own = bits(type_.dtype) / 8
        element = self._element(type_)
        if copy.as_argument:
            element *= self._slower(type_.shape)
        return type_.elements * (element - copy.counted * own / self._bandwidth)

    def _laid(self, part: Laid, made: TensorType) -> float:
        """How much longer it takes to cut out, multiply and write back layers that lie as this part
        of one is made.

        Args:
          part: what the layers are, beside the part.
          made: what a device makes of it.
        """
        sides = [size for size in made.shape if size > 1]
        if len(sides) < 2:
            return 0.0
        batch, *others, last = sides
        elements = part.larger * made.elements
        columns = max(others, default=0)
        if last < columns:
            return self._longer(part.use, elements * self._padding(columns), made)
        slower, padding = self._in_tiles(batch), self._rows / self._tile(batch) - 1
        copied = part.use.copies * self._element(made) * (slower - 1)
        return elements * (copied + part.use.products * padding / self._product)

    def _filled(self, layer: Filled, type_: TensorType) -> float:
        """How much longer it takes to cut out, multiply and write back layers that fill less than
        the columns of a tile.

        Args:
          layer: what is done with it.
          type_: of what a device has of it.
        """
        padding = self._padding(max(type_.shape[dim] for dim in layer.columns))
        return self._longer(layer.use, type_.elements * padding, type_)

    def _padding(self, columns: int) -> float:
        """Elements that a tile has beside each of an array with so many columns."""
        return max(0.0, self._columns / columns - 1)

    def _longer(self, use: Used, elements: float, type_: TensorType) -> float:
        """Seconds for so many elements more of what is used so."""
        return elements * (use.copies * self._element(type_) + use.products / self._product)

    def _element(self, type_: TensorType) -> float:
        """Seconds for an element of an array that lies in full tiles, read and written."""
        return 2 * max(bits(type_.dtype) / 8, self._narrowest) / self._bandwidth

    def _slower(self, shape: tuple[int, ...]) -> float:
        """How much longer an array takes that lies in the order of its dimensions, by the rows of
        its tiles."""
        sides = [size for size in shape if size > 1][-2:]
        if len(sides) < 2 or sides[1] < self._columns:
            return 1.0
        return self._in_tiles(sides[0])

    def _in_tiles(self, rows: int) -> float:
        """How much longer an array takes in tiles of no more than these rows than in full ones."""
        return (1 + self._start / self._tile(rows)) / (1 + self._start / self._rows)

    def _tile(self, rows: int) -> int:
        """The rows of a tile that holds no more than these."""
        return min(self._rows, 1 << (rows - 1).bit_length())

    def _comes_first(self, batch: frozenset[int], shape: tuple[int, ...]) -> bool:
        """Whether these dimensions come before all others, as an argument lies in memory.

        Those of a single index do not count. Where the last one does not fill the columns of a
        tile, one that does is put in its place.
        """
        order = [dim for dim, size in enumerate(shape) if size > 1]
        if order and shape[order[-1]] % self._columns:
            full = [dim for dim in order if not shape[dim] % self._columns]
            order = [dim for dim in order if dim not in full[-1:]] + full[-1:]
        first = [dim in batch for dim in order]
        return first == sorted(first, reverse=True)
