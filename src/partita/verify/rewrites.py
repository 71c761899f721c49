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
from partita.spmd.instructions import Instruction, Section, While, inside
from partita.verify.collectives import HloCollective
from partita.verify.comparison import Becomes, hlo_collective
from partita.verify.mergeable import moved_alike
from partita.verify.narrowest_types import NarrowestTypes
from partita.verify.reading import Readers, moves, outputs

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
    for loop in inside(spmd.instructions):
        trips = loop.loop.trips if isinstance(loop, While) else None
        if not isinstance(loop, While) or trips is None or trips == 1:
            continue
        readers = _Body(loop)
        for item in loop.body.instructions:
            summed = isinstance(item, Reshard) and item.step.collective.reduces
            if isinstance(item, Reshard) and summed and readers.only_add(spmd, item.output):
                yield item.output, trips


class _Body(Readers):
    """Readers of each buffer of a loop's body, inner loops and branches included."""

    def __init__(self, loop: While) -> None:
        super().__init__(inside((*loop.condition.instructions, *loop.body.instructions)))
        self.loop = loop

    def only_add(self, spmd: SpmdProgram, buffer: int) -> bool:
        """Returns whether a buffer, through data movement, is only added to a loop-carried value
        that nothing else reads."""
        while len(reading := self.of.get(buffer, [])) == 1 and buffer not in self.loop.body.results:
            (item,) = reading
            moved = moves(spmd.program, item)
            if isinstance(item, Reshard) and moved:
                buffer = item.output
                continue
            if not isinstance(item, Run):
                return False
            traits, (made, *_) = spmd.program.operations[item.op].traits, item.outputs
            sizes = {spmd.buffers[b].type.elements for b in (buffer, made)}
            if not (moved or (traits.reduces and len(sizes) == 1)):
                others, adds = [b for b in item.inputs if b != buffer], traits.combiner == "add"
                return adds and len(others) == 1 and self._is_total(others[0], made)
            buffer = made
        return False

    def _is_total(self, before: int, after: int) -> bool:
        """Returns whether the loop carries `after` as the next `before`, and only this addition
        reads it."""
        arguments, results = self.loop.body.arguments, self.loop.body.results
        if before not in arguments or results.count(after) != 1 or before in results:
            return False
        place = arguments.index(before)
        tested = self.of.get(self.loop.condition.arguments[place])
        alone = len(self.of[before]) == 1 and not self.of.get(after) and not tested
        return alone and results[place] == after


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
    items = list(inside(spmd.instructions))
    readers = Readers(items)
    found: set[int] = set()

    def rounds(item: Instruction | Section) -> bool:
        if isinstance(item, Run | Reshard) and moves(spmd.program, item):
            return found.issuperset(outputs(item))
        traits = spmd.program.operations[item.op].traits if isinstance(item, Run) else None
        return traits is not None and traits.product and not traits.ragged

    for item in reversed(items):
        for buffer in outputs(item) if isinstance(item, Run | Reshard) else ():
            uses = readers.of.get(buffer, [])
            if uses and buffer not in spmd.results and all(map(rounds, uses)):
                found.add(buffer)
    return found
