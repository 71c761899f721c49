"""What XLA's GPU compiler makes of the collectives that a plan makes explicit, and when.

It keeps them one to one, but for these. `tests/verify/test_gpu_rewrites.py` compiles each again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from partita.program.ir import bits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import While, inside
from partita.verify.comparison import Becomes, hlo_collective
from partita.verify.reading import MOVING, Readers

GPU_REWRITES = {
    "moved narrower": "an all_gather, all_to_all or collective_permute of what is only a wider "
    "form of a narrower type moves the narrower type; so does one of which all that is read is a "
    "narrower form",
    "stacked sums": "a sum in the body of a loop that is only put in its place of a stack is "
    "done once, of the whole stack, after the loop",
}
"""Rewrites that XLA's GPU compiler is known for, by name: what it does, and when."""

_NARROWED = ("all_gather", "all_to_all", "collective_permute")
_FLOATS = ("f", "bf")


def on_gpu(spmd: SpmdProgram) -> list[tuple[Becomes, ...]]:
    """What the compiler makes of collectives: for each of `spmd.collectives` all it may be."""
    own, types = spmd.collective_steps, _Types(spmd)
    stacked = dict(_stacked(spmd))
    found: list[tuple[Becomes, ...]] = []
    for number, collective in enumerate(spmd.collectives):
        hlo, becomes = hlo_collective(collective, spmd.mesh), list[Becomes]()
        if number < len(own):  # of a region, nothing more is known
            move = own[number]
            wide, narrow = bits(collective.dtype), types.moved(move)
            if narrow < wide:
                made = dataclasses.replace(hlo, bytes=hlo.bytes * narrow // wide)
                becomes.append(Becomes("moved narrower", made, always=False))
            if trips := stacked.get(move.output):
                made = dataclasses.replace(hlo, bytes=hlo.bytes * trips)
                becomes.append(Becomes("stacked sums", made, always=False, of=trips))
        found.append(tuple(becomes))
    return found


class _Types:
    """The narrowest types that elements have on their way, before and after they are moved."""

    def __init__(self, spmd: SpmdProgram) -> None:
        self.spmd = spmd
        items = list(inside(spmd.instructions))
        self.makers = {item.output: item for item in items if isinstance(item, Reshard)} | {
            buffer: item for item in items if isinstance(item, Run) for buffer in item.outputs
        }
        self.readers = Readers(items)
        self.results = frozenset(spmd.results)

    def moved(self, move: Reshard) -> int:
        """Bits of the type that the compiler moves."""
        own = self._bits(move.input)
        if move.step.kind not in _NARROWED or not self._float(move.input):
            return own
        return min(self._before(move.input), self._after(move.output))

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
            if not isinstance(item, Run | Reshard) or kind not in (*MOVING, "convert"):
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


def _stacked(spmd: SpmdProgram) -> Iterator[tuple[int, int]]:
    """Sums that loop bodies only put into a stack that they carry: the buffer, and the trips."""
    for loop in inside(spmd.instructions):
        trips = loop.loop.trips if isinstance(loop, While) else None
        if not isinstance(loop, While) or trips is None or trips == 1:
            continue
        readers = Readers(inside((*loop.condition.instructions, *loop.body.instructions)))
        stack = functools.partial(_only_stacked, spmd, loop, readers)
        for item in loop.body.instructions:
            summed = isinstance(item, Reshard) and item.step.kind == "all_reduce"
            if isinstance(item, Reshard) and summed and stack(item.output):
                yield item.output, trips


def _only_stacked(spmd: SpmdProgram, loop: While, readers: Readers, buffer: int) -> bool:
    """Whether all that is read of a buffer goes to its place in a stack, which nothing reads."""
    reading, results = readers.of.get(buffer, []), loop.body.results
    item = reading[0] if len(reading) == 1 else None
    if buffer in results or not isinstance(item, Run):
        return False
    kind, made = spmd.program.operations[item.op].short, item.outputs[0]
    if kind in (*MOVING, "broadcast_in_dim"):
        same = spmd.buffers[made].type.elements == spmd.buffers[buffer].type.elements
        return same and _only_stacked(spmd, loop, readers, made)
    if kind != "dynamic_update_slice" or item.inputs[1] != buffer:
        return False
    stack = item.inputs[0]
    carried = stack in loop.body.arguments and results.count(made) == 1 and not readers.of.get(made)
    if not carried or len(readers.of[stack]) != 1:
        return False
    return loop.body.arguments.index(stack) == results.index(made)
