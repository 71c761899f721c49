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
          passed: the steps and operations after a collective that conversions are moved across.
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
        """Returns bits of the narrower type that the operand of a collective was converted from."""
        return self._before(move.input) if self._is_narrowed(move) else self._bits(move.input)

    def after(self, move: Reshard) -> int:
        """Returns bits of the widest type in which the result of a collective is read."""
        return self._after(move.output) if self._is_narrowed(move) else self._bits(move.input)

    def _is_narrowed(self, move: Reshard) -> bool:
        return move.step.kind in _NARROWED and self._float(move.input)

    def _before(self, buffer: int) -> int:
        """Returns bits of the narrowest type that a buffer was converted from, through data
        movement."""
        narrowest = self._bits(buffer)
        while (maker := self.makers.get(buffer)) is not None:
            kind, read = self._kind(maker), self._read(maker)
            if kind not in MOVING and not (kind == "convert" and self._float(read[0])):
                break
            buffer = read[0]
            narrowest = min(narrowest, self._bits(buffer))
        return narrowest

    def _after(self, buffer: int) -> int:
        """Returns bits of the widest type in which a buffer is read, through data movement."""
        known: dict[int, int] = {}
        waiting = [buffer]
        while waiting:
            at = waiting[-1]
            converted, passed = self._passes_on(at)
            missing = [made for made in passed if made not in known]
            if missing:
                waiting += missing
                continue
            widest = [*map(self._bits, converted), *(known[made] for made in passed)]
            known[waiting.pop()] = min(self._bits(at), max(widest, default=self._bits(at)))
        return known[buffer]

    def _passes_on(self, buffer: int) -> tuple[list[int], list[int]]:
        """Returns the conversions of a buffer, and the results that only move its elements. Both
        are empty if an operation reads the buffer unconverted."""
        converted: list[int] = []
        passed: list[int] = []
        if buffer in self.results:
            return converted, passed
        for item in self.readers.of.get(buffer, []):
            kind = self._kind(item)
            if not isinstance(item, Run | Reshard) or kind not in (*self._passed, "convert"):
                return [], []
            made = item.outputs[0] if isinstance(item, Run) else item.output
            (converted if kind == "convert" else passed).append(made)
        return converted, passed

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
