"""Time to copy an array from one place in memory to another, or into another order.

Vector units copy tile by tile. Elements narrower than those that they work on take as long as
these, and every tile takes some time besides its rows. So an array of bfloat16 takes as long as one
of float32. An array in tiles of two rows takes 2.6 times as long as one in tiles of eight.
"""

from __future__ import annotations

from partita.cost.devices.hardware import TileShape, VectorUnit
from partita.cost.kernels.layers import Copied, Copy, Filled, Laid, Used
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
        """Returns the seconds of a copy, beyond what other kernels read and write anyway.

        Args:
          copy: what is copied.
          type_: type of one device's shard of it.
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
        """Returns the extra seconds to cut out, multiply and write back layers whose memory layout
        is that of a computed part.

        Args:
          part: the part, and how many more elements a layer has.
          made: type of one device's shard of the part.
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
        """Returns the extra seconds to cut out, multiply and write back layers that fill less than
        the columns of a tile.

        Args:
          layer: the uses of the layer.
          type_: type of one device's shard of it.
        """
        padding = self._padding(max(type_.shape[dim] for dim in layer.columns))
        return self._longer(layer.use, type_.elements * padding, type_)

    def _padding(self, columns: int) -> float:
        """Returns the padding of a tile per element of an array with so many columns."""
        return max(0.0, self._columns / columns - 1)

    def _longer(self, use: Used, elements: float, type_: TensorType) -> float:
        """Returns the seconds that these uses take for so many extra elements."""
        return elements * (use.copies * self._element(type_) + use.products / self._product)

    def _element(self, type_: TensorType) -> float:
        """Returns the seconds to read and write one element of an array in full tiles."""
        return 2 * max(bits(type_.dtype) / 8, self._narrowest) / self._bandwidth

    def _slower(self, shape: tuple[int, ...]) -> float:
        """Returns the relative time of an array stored in the order of its dimensions, by the rows
        of its tiles."""
        sides = [size for size in shape if size > 1][-2:]
        if len(sides) < 2 or sides[1] < self._columns:
            return 1.0
        return self._in_tiles(sides[0])

    def _in_tiles(self, rows: int) -> float:
        """Returns the time of an array in tiles of at most these rows, relative to full tiles."""
        return (1 + self._start / self._tile(rows)) / (1 + self._start / self._rows)

    def _tile(self, rows: int) -> int:
        """Returns the number of rows of a tile that holds at most these."""
        return min(self._rows, 1 << (rows - 1).bit_length())

    def _comes_first(self, batch: frozenset[int], shape: tuple[int, ...]) -> bool:
        """Returns whether these dimensions come before all others in the memory of an argument.

        Dimensions of a single index do not count. If the last one does not fill the columns of a
        tile, one that does takes its place.
        """
        order = [dim for dim, size in enumerate(shape) if size > 1]
        if order and shape[order[-1]] % self._columns:
            full = [dim for dim in order if not shape[dim] % self._columns]
            order = [dim for dim in order if dim not in full[-1:]] + full[-1:]
        first = [dim in batch for dim in order]
        return first == sorted(first, reverse=True)
