"""Rewrites that XLA's GPU compiler applies to the collectives that a plan makes explicit.

It keeps all others one to one. `tests/verify/test_gpu_rewrites.py` compiles each rewrite again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partita.program.collectives import ALL_REDUCE
from partita.program.ir import bits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.verify.comparison import Becomes, hlo_collective
from partita.verify.dataflow import Dataflow, loop_sums
from partita.verify.narrowest_types import NarrowestTypes

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
    for buffer, body in loop_sums(spmd, (ALL_REDUCE,)):
        match body.end_of(buffer, _rearranges):
            case item, written if body.traits(item).writes_window:
                stack, update = item.inputs[:2]
                if update == written and body.carries(stack, item.outputs[0]):
                    yield buffer, body.trips


def _rearranges(flow: Dataflow, item: Run | Reshard, same: bool) -> bool:
    return isinstance(item, Run) and same and (flow.moves(item) or flow.traits(item).broadcasts)
