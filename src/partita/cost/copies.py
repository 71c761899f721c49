"""What it takes to copy an array from one place in memory to another, or into another order.

Vector units do it, a tile at a time: elements narrower than those that they work on take as long as
these, and every tile takes some time besides its rows. So an array of bfloat16 takes as long as one
of float32, and one that lies in tiles of two rows 2.6 times as long as one in tiles of eight.
"""

from __future__ import annotations

from partita.cost.hardware import TileShape, VectorUnit
from partita.cost.layers import Copied
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
        self._bandwidth = bandwidth

    def seconds(self, copy: Copied, type_: TensorType) -> float:
        """How long a copy takes, beyond what other kernels read and write of it anyway.

        Args:
          copy: what is copied.
          type_: of what a device has of it.
        """
        if copy.batch is not None and self._comes_first(copy.batch, type_.shape):
            return 0.0
        own = bits(type_.dtype) / 8
        element = 2 * max(own, self._narrowest) / self._bandwidth
        if copy.as_argument:
            element *= self._slower(type_.shape)
        return type_.elements * (element - copy.counted * own / self._bandwidth)

    def _slower(self, shape: tuple[int, ...]) -> float:
        """How much longer an array takes that lies in the order of its dimensions, by the rows of
        its tiles."""
        sides = [size for size in shape if size > 1][-2:]
        if len(sides) < 2 or sides[1] < self._columns:
            return 1.0
        rows = min(self._rows, 1 << (sides[0] - 1).bit_length())
        return (1 + self._start / rows) / (1 + self._start / self._rows)

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
