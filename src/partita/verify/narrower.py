"""The narrowest types that the elements of collectives have on their way.

Compilers move conversions across collectives that only move elements, so that less is moved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from partita.program.ir import bits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import inside
from partita.verify.reading import MOVING, Readers

_NARROWED = ("all_gather", "all_to_all", "collective_permute")
_FLOATS = ("f", "bf")


class NarrowestTypes:
    """The narrowest types that elements have on their way, before and after they are moved."""

    def __init__(self, spmd: SpmdProgram, passed: Collection[str] = MOVING) -> None:
        """Follows the elements of a program.

        Args:
          spmd: the program.
          passed: the steps and operations behind a collective that conversions are moved across.
        """
        self.spmd = spmd
        self._passed = passed
        items = list(inside(spmd.instructions))
        self.makers = {item.output: item for item in items if isinstance(item, Reshard)} | {
            buffer: item for item in items if isinstance(item, Run) for buffer in item.outputs
        }
        self.readers = Readers(items)
        self.results = frozenset(spmd.results)

    def before(self, move: Reshard) -> int:
        """Bits of what a collective moves only a wider form of."""
        return self._before(move.input) if self._is_narrowed(move) else self._bits(move.input)

    def after(self, move: Reshard) -> int:
        """Bits of the widest of what is read of what a collective has moved."""
        return self._after(move.output) if self._is_narrowed(move) else self._bits(move.input)

    def _is_narrowed(self, move: Reshard) -> bool:
        return move.step.kind in _NARROWED and self._float(move.input)

    def _before(self, buffer: int) -> int:
        """Bits of what a buffer is only a wider form of, wherever its elements come from."""
        own, maker = self._bits(buffer), self.makers.get(buffer)
        if maker is None:
            return own
        kind, read = self._kind(maker), self._read(maker)
        if kind in MOVING or (kind == "convert" and self._float(read[0])):
            return min(own, self._before(read[0]))
        return own

    def _after(self, buffer: int) -> int:
        """Bits of the widest of what is read of a buffer, wherever its elements go."""
        own, reading = self._bits(buffer), self.readers.of.get(buffer, [])
        if not reading or buffer in self.results:
            return own
        widest = 0
        for item in reading:
            kind = self._kind(item)
            passes = kind in self._passed or kind == "convert"
            if not isinstance(item, Run | Reshard) or not passes:
                return own
            made = item.outputs[0] if isinstance(item, Run) else item.output
            widest = max(widest, self._bits(made) if kind == "convert" else self._after(made))
        return min(own, widest)

    def _kind(self, item: object) -> str:
        if isinstance(item, Run):
            return self.spmd.program.operations[item.op].short
        return item.step.kind if isinstance(item, Reshard) else ""

    def _read(self, item: Run | Reshard) -> Sequence[int]:
        return item.inputs if isinstance(item, Run) else (item.input,)

    def _bits(self, buffer: int) -> int:
        return bits(self.spmd.buffers[buffer].type.dtype)

    def _float(self, buffer: int) -> bool:
        return self.spmd.buffers[buffer].type.dtype.startswith(_FLOATS)
