"""The narrowest types that the elements of collectives have on their way.

Compilers move conversions across collectives that only move elements, so that less is moved.
"""

from __future__ import annotations

from partita.program.ir import bits
from partita.program.op_traits import Traits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import inside
from partita.verify.reading import Readers, moves, outputs

_FLOATS = ("f", "bf")


class NarrowestTypes:
    """The narrowest types that elements have on their way, before and after they are moved."""

    def __init__(self, spmd: SpmdProgram, selections: bool = False) -> None:
        """Follows the elements of a program.

        Args:
          spmd: the program.
          selections: whether conversions after a collective are moved across operations that
            select among several operands, too.
        """
        self.spmd = spmd
        self._selections = selections
        items = list(inside(spmd.instructions))
        self.makers = {
            buffer: item
            for item in items
            if isinstance(item, Run | Reshard)
            for buffer in outputs(item)
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
        return move.step.collective.moves and self._float(move.input)

    def _before(self, buffer: int) -> int:
        """Returns bits of the narrowest type that a buffer was converted from, through data
        movement."""
        narrowest = self._bits(buffer)
        while (maker := self.makers.get(buffer)) is not None:
            if not (moves(self.spmd.program, maker) or self._converts(maker)):
                break
            buffer = maker.input if isinstance(maker, Reshard) else maker.inputs[0]
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
            if not isinstance(item, Run | Reshard):
                return [], []
            if isinstance(item, Run) and self._traits(item).converts:
                converted.append(item.outputs[0])
            elif moves(self.spmd.program, item) or self._selects(item):
                passed.append(outputs(item)[0])
            else:
                return [], []
        return converted, passed

    def _traits(self, item: Run) -> Traits:
        return self.spmd.program.operations[item.op].traits

    def _selects(self, item: Run | Reshard) -> bool:
        return self._selections and isinstance(item, Run) and self._traits(item).selects

    def _converts(self, item: Run | Reshard) -> bool:
        """Returns whether an item converts floats."""
        converts = isinstance(item, Run) and self._traits(item).converts
        return isinstance(item, Run) and converts and self._float(item.inputs[0])

    def _bits(self, buffer: int) -> int:
        return bits(self.spmd.buffers[buffer].type.dtype)

    def _float(self, buffer: int) -> bool:
        return self.spmd.buffers[buffer].type.dtype.startswith(_FLOATS)
