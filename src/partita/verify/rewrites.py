"""Rewrites that the TPU compiler applies to the collectives that a plan makes explicit.

It keeps most of them one to one. The rules for the others were found with libtpu 0.0.52, by
compiling single collectives for topologies of v5e, v5p and v6e and following them from pass to
pass. `tests/verify/test_rewrites.py` compiles them again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from partita.program.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from partita.program.ir import bits
from partita.spmd import Collective, Reshard, Run, SpmdProgram
from partita.verify.collectives import HloCollective
from partita.verify.comparison import Becomes, hlo_collective
from partita.verify.dataflow import Dataflow, Item, loop_sums, made_by
from partita.verify.mergeable import moved_alike
from partita.verify.narrowest_types import NarrowestTypes

REWRITES = {
    "shard of a sum": "a reduce_scatter becomes an all_reduce of which every device keeps its "
    "shard: always if a vector is scattered, or over all devices of a torus along whose sides a "
    "sum runs at once (three sides, or two of the same size from 4 on); else where the layout that "
    "the compiler gives the tensor cannot be cut into shards of whole tiles",
    "sum of padded shards": "an all_gather of a vector becomes an all_reduce of shards padded with "
    "zeros: always if a shard is not a multiple of 128 elements",
    "narrowed": "an all_gather, all_to_all or collective_permute in float32 that only matrix "
    "products and convolutions read, which round to bfloat16 on a TPU, moves bfloat16; so does one "
    "before it, and one of which all that is read is converted to bfloat16",
    "merged": "a collective of what is computed by the same operations, from the same, as the "
    "operand of an earlier one, is one with it; so is a sum that differs only in factors which are "
    "the same for all summands; a reverse over dimensions of size 1 counts as none",
    "after the loop": "a sum in the body of a loop that is only added to what the loop carries is "
    "done once, after the loop",
    "padded shards": "a reduce_scatter pads its shards to whole tiles, and collective_permutes "
    "send on what has come to the wrong device; both is read from the compiled program, and "
    "counted as what was padded",
}
"""Known rewrites of the TPU compiler, by name: what it does, and when."""

_LANES = 128
"""Elements in a row of a TPU's registers."""


def on_tpu(spmd: SpmdProgram, topology: str) -> list[tuple[Becomes, ...]]:
    """Returns, for each of `spmd.collectives`, all rewrites that the TPU compiler may apply to it.

    Args:
      spmd: the program.
      topology: what it is compiled for, such as `v5e:4x4`.
    """
    everywhere = spmd.mesh.devices if _runs_along_sides(topology) else 0
    rounded, own = _rounded(spmd).union(_converted(spmd)), spmd.collective_steps
    alike, moved = moved_alike(spmd), set()
    accumulated = dict(_accumulated(spmd))
    found: list[tuple[Becomes, ...]] = []
    for number, collective in enumerate(spmd.collectives):
        hlo = hlo_collective(collective, spmd.mesh)
        if number >= len(own):  # of a region, nothing more is known
            scattered = collective.kind == REDUCE_SCATTER.name
            found.append(_of_scatter(collective, None, hlo, everywhere) if scattered else ())
            continue
        move = own[number]
        becomes: tuple[Becomes, ...]
        if collective.kind == REDUCE_SCATTER.name:
            becomes = _of_scatter(collective, move, hlo, everywhere)
        elif collective.kind == ALL_GATHER.name:
            becomes = _of_gather(move, hlo, rounded)
        else:
            becomes = _narrowed(move, hlo, rounded)
        if move.output in accumulated:
            uncertain = (
                dataclasses.replace(b, always=False, cut=b.rewrite == "shard of a sum")
                for b in becomes
            )
            becomes = (*_after_loop(hlo, accumulated[move.output]), *uncertain)
        place = alike.get(move.output, move.output)
        if place in moved:
            becomes += (Becomes("merged", None, always=False),)
        moved.add(place)
        found.append(becomes)
    return found


def _of_scatter(
    collective: Collective, move: Reshard | None, hlo: HloCollective, everywhere: int
) -> tuple[Becomes, ...]:
    vector = move is not None and move.step.of_vector
    always = vector or collective.group == everywhere
    made = dataclasses.replace(hlo, kind=ALL_REDUCE.name)
    return (Becomes("shard of a sum", made, always, cut=not always),)


def _of_gather(move: Reshard, hlo: HloCollective, rounded: set[int]) -> tuple[Becomes, ...]:
    step = move.step
    if step.of_vector and step.before.shape[step.dim] % _LANES:
        made = dataclasses.replace(hlo, kind=ALL_REDUCE.name)
        return (Becomes("sum of padded shards", made),)
    return _narrowed(move, hlo, rounded)


def _narrowed(move: Reshard, hlo: HloCollective, rounded: set[int]) -> tuple[Becomes, ...]:
    if not move.step.collective.moves or move.step.before.dtype != "f32":
        return ()
    if move.output not in rounded:
        return ()
    return (Becomes("narrowed", dataclasses.replace(hlo, bytes=hlo.bytes // 2), False),)


def _after_loop(hlo: HloCollective, trips: int) -> Iterator[Becomes]:
    for kind in dict.fromkeys((hlo.kind, ALL_REDUCE.name)):
        made = dataclasses.replace(hlo, kind=kind)
        yield Becomes("after the loop", made, False, cut=kind != hlo.kind, of=trips)


def _accumulated(spmd: SpmdProgram) -> Iterator[tuple[int, int]]:
    """Sums that loop bodies only add to what they carry: the buffer, and the trips of the loop."""
    for buffer, body in loop_sums(spmd, (ALL_REDUCE, REDUCE_SCATTER)):
        match body.end_of(buffer, _keeps_elements):
            case item, added if body.traits(item).combiner == "add":
                others = [each for each in item.inputs if each != added]
                if len(others) == 1 and body.carries(others[0], item.outputs[0]):
                    yield buffer, body.trips


def _keeps_elements(flow: Dataflow, item: Run | Reshard, same: bool) -> bool:
    return flow.moves(item) or (same and flow.traits(item).reduces)


def _runs_along_sides(topology: str) -> bool:
    """Returns whether a sum over all devices runs along all sides of the torus at once."""
    sides = [side for side in map(int, re.findall(r"\d+", topology.partition(":")[2])) if side > 1]
    return len(sides) == 3 or (len(sides) == 2 and sides[0] == sides[1] >= 4)


def _converted(spmd: SpmdProgram) -> Iterator[int]:
    """Yields buffers that collectives move in float32 and that are read only in a narrower type."""
    types = NarrowestTypes(spmd, selections=True)
    for move in spmd.collective_steps:
        if move.step.before.dtype == "f32" and types.after(move) == bits("bf16"):
            yield move.output


def _rounded(spmd: SpmdProgram) -> set[int]:
    """Returns buffers whose elements are read only by products, if necessary after data
    movement."""
    flow, found = Dataflow(spmd, spmd.instructions), set[int]()
    results = frozenset(spmd.results)

    def rounds(reader: Item) -> bool:
        if isinstance(reader, Run | Reshard) and flow.moves(reader):
            return found.issuperset(made_by(reader))
        traits = flow.traits(reader)
        return traits.product and not traits.ragged

    for item in reversed(flow.items):
        for buffer in made_by(item) if isinstance(item, Run | Reshard) else ():
            readers = flow.readers.get(buffer)
            if readers and buffer not in results and all(map(rounds, readers)):
                found.add(buffer)
    return found
