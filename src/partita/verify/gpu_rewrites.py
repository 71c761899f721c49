"""Rewrites that XLA's GPU compiler applies to the collectives that a plan makes explicit.

It keeps all others one to one. `tests/verify/test_gpu_rewrites.py` compiles each rewrite again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from partita.program.collectives import ALL_REDUCE
from partita.program.ir import bits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import While, inside
from partita.verify.comparison import Becomes, hlo_collective
from partita.verify.narrowest_types import NarrowestTypes
from partita.verify.reading import Readers, moves

GPU_REWRITES = {
    "moved narrower": "an all_gather, all_to_all or collective_permute of what is only a wider "
    "form of a narrower type moves the narrower type; so does one of which all that is read is a "
    "narrower form",
    "stacked sums": "a sum in the body of a loop that is only put in its place of a stack is "
    "done once, of the whole stack, after the loop",
}
"""Known rewrites of XLA's GPU compiler, by name: what it does, and when."""


def on_gpu(spmd: SpmdProgram) -> list[tuple[Becomes, ...]]:
    """Returns, for each of `spmd.collectives`, all rewrites that the compiler may apply to it."""
    own, types = spmd.collective_steps, NarrowestTypes(spmd)
    stacked = dict(_stacked(spmd))
    found: list[tuple[Becomes, ...]] = []
    for number, collective in enumerate(spmd.collectives):
        hlo, becomes = hlo_collective(collective, spmd.mesh), list[Becomes]()
        if number < len(own):  # of a region, nothing more is known
            move = own[number]
            wide, narrow = bits(collective.dtype), min(types.before(move), types.after(move))
            if narrow < wide:
                made = dataclasses.replace(hlo, bytes=hlo.bytes * narrow // wide)
                becomes.append(Becomes("moved narrower", made, always=False))
            if trips := stacked.get(move.output):
                made = dataclasses.replace(hlo, bytes=hlo.bytes * trips)
                becomes.append(Becomes("stacked sums", made, always=False, of=trips))
        found.append(tuple(becomes))
    return found


def _stacked(spmd: SpmdProgram) -> Iterator[tuple[int, int]]:
    """Sums that loop bodies only put into a stack that they carry: the buffer, and the trips."""
    for loop in inside(spmd.instructions):
        trips = loop.loop.trips if isinstance(loop, While) else None
        if not isinstance(loop, While) or trips is None or trips == 1:
            continue
        readers = Readers(inside((*loop.condition.instructions, *loop.body.instructions)))
        stack = functools.partial(_only_stacked, spmd, loop, readers)
        for item in loop.body.instructions:
            summed = isinstance(item, Reshard) and item.step.kind == ALL_REDUCE.name
            if isinstance(item, Reshard) and summed and stack(item.output):
                yield item.output, trips


def _only_stacked(spmd: SpmdProgram, loop: While, readers: Readers, buffer: int) -> bool:
    """Returns whether a buffer is only ever written to its slot in a stack, which nothing else
    reads."""
    results = loop.body.results
    while True:
        reading = readers.of.get(buffer, [])
        item = reading[0] if len(reading) == 1 else None
        if buffer in results or not isinstance(item, Run):
            return False
        traits, made = spmd.program.operations[item.op].traits, item.outputs[0]
        if not (moves(spmd.program, item) or traits.broadcasts):
            break
        if spmd.buffers[made].type.elements != spmd.buffers[buffer].type.elements:
            return False
        buffer = made
    if not traits.writes_window or item.inputs[1] != buffer:
        return False
    stack = item.inputs[0]
    carried = stack in loop.body.arguments and results.count(made) == 1 and not readers.of.get(made)
    if not carried or len(readers.of[stack]) != 1:
        return False
    return loop.body.arguments.index(stack) == results.index(made)
