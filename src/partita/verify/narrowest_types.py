"""The narrowest types that the elements of collectives have on their way.

Compilers move conversions across collectives that only move elements, so that less is moved.
"""

from __future__ import annotations

from partita.spmd import Reshard, Run, SpmdProgram
from partita.verify.dataflow import Dataflow, made_by

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
        self._selections = selections
        self._flow = Dataflow(spmd, spmd.instructions)
        self._bits = self._flow.bits
        self._results = frozenset(spmd.results)

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
        while (maker := self._flow.makers.get(buffer)) is not None:
            read = maker.inputs[:1] if isinstance(maker, Run) else (maker.input,)
            converts = self._flow.traits(maker).converts and self._float(read[0])
            if not (converts or self._flow.moves(maker)):
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
        if buffer in self._results:
            return converted, passed
        for item in self._flow.readers.get(buffer, []):
            converts = self._flow.traits(item).converts
            if not isinstance(item, Run | Reshard) or not (converts or self._passes(item)):
                return [], []
            (converted if converts else passed).append(made_by(item)[0])
        return converted, passed

    def _passes(self, item: Run | Reshard) -> bool:
        selects = self._selections and self._flow.traits(item).selects
        return selects or self._flow.moves(item)

    def _float(self, buffer: int) -> bool:
        return self._flow.spmd.buffers[buffer].type.dtype.startswith(_FLOATS)
