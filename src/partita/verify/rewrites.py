"""What the TPU compiler makes of the collectives that a plan makes explicit, and when.

It keeps most of them one to one. The rules by which it does not were found with libtpu 0.0.52, by
compiling single collectives for topologies of v5e, v5p and v6e and following them from pass to
pass; `tests/verify/test_rewrites.py` compiles them again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from partita.spmd import Collective, Move, Run, SpmdProgram, Step
from partita.spmd.program import Case, Instruction, Section, While
from partita.verify.comparison import Becomes, exchange_of
from partita.verify.exchanges import Exchange

REWRITES = {
    "piece of a sum": "a reduce_scatter becomes an all_reduce of which every device keeps its "
    "piece: always if a vector is scattered, or over all devices of a torus along whose sides a "
    "sum runs at once (three sides, or two of the same size from 4 on); else where the layout that "
    "the compiler gives the tensor cannot be cut into pieces of whole tiles",
    "sum of padded pieces": "an all_gather of a vector becomes an all_reduce of pieces padded with "
    "zeros: always if a piece is not a multiple of 128 elements",
    "narrowed": "an all_gather, all_to_all or collective_permute in float32 that only matrix "
    "products and convolutions read, which round to bfloat16 on a TPU, moves bfloat16; so does one "
    "before it",
    "merged": "an all_gather of what is computed by the same operations of the same lines, from "
    "the same, as the operand of an earlier one, is one with it; a reverse over dimensions of size "
    "1 counts as none",
    "padded pieces": "a reduce_scatter pads its pieces to whole tiles, and collective_permutes "
    "hand on what has come to the wrong device; both is read from the compiled program, and "
    "counted as what was padded",
}
"""Rewrites that the TPU compiler is known for, by name: what it does, and when."""

_LANES = 128
"""Elements in a row of a TPU's registers."""
_PRODUCTS = {"dot_general", "convolution"}
_MOVING = {"all_gather", "all_to_all", "collective_permute", "slice", "transpose", "reshape"}
"""Steps and operations that only say where elements are."""


def on_tpu(spmd: SpmdProgram, topology: str) -> list[tuple[Becomes, ...]]:
    """What the TPU compiler makes of collectives: for each of `spmd.collectives` all it may be.

    Args:
      spmd: the program.
      topology: what it is compiled for, such as `v5e:4x4`.
    """
    everywhere = spmd.mesh.devices if _runs_along_sides(topology) else 0
    rounded, own = _rounded(spmd), spmd.exchanges
    alike, gathered = _alike(spmd), set()
    found = []
    for number, collective in enumerate(spmd.collectives):
        move = own[number] if number < len(own) else None  # of a region, nothing more is known
        exchange = exchange_of(collective, spmd.mesh)
        if collective.kind == "reduce_scatter":
            found.append(_of_scatter(collective, move, exchange, everywhere))
        elif collective.kind == "all_gather" and move is not None:
            found.append(_of_gather(move, exchange, rounded))
            place = alike.get(move.output, move.output)
            if place in gathered:
                found[-1] += (Becomes("merged", None, always=False),)
            gathered.add(place)
        else:
            found.append(() if move is None else _narrowed(move, exchange, rounded))
    return found


def _of_scatter(
    collective: Collective, move: Move | None, exchange: Exchange, everywhere: int
) -> tuple[Becomes, ...]:
    vector = move is not None and _is_vector(move.step)
    always = vector or collective.group == everywhere
    made = dataclasses.replace(exchange, kind="all_reduce")
    return (Becomes("piece of a sum", made, always, cut=not always),)


def _of_gather(move: Move, exchange: Exchange, rounded: set[int]) -> tuple[Becomes, ...]:
    step = move.step
    if _is_vector(step) and step.before.shape[step.dim] % _LANES:
        made = dataclasses.replace(exchange, kind="all_reduce")
        return (Becomes("sum of padded pieces", made),)
    return _narrowed(move, exchange, rounded)


def _narrowed(move: Move, exchange: Exchange, rounded: set[int]) -> tuple[Becomes, ...]:
    if move.step.kind not in _MOVING or move.step.before.dtype != "f32":
        return ()
    if move.output not in rounded:
        return ()
    return (Becomes("narrowed", dataclasses.replace(exchange, bytes=exchange.bytes // 2), False),)


def _is_vector(step: Step) -> bool:
    """Whether all dimensions but that which is gathered or scattered have size 1."""
    return all(size == 1 for dim, size in enumerate(step.before.shape) if dim != step.dim)


def _runs_along_sides(topology: str) -> bool:
    """Whether a sum over all devices runs along the sides of the torus at once."""
    sides = [side for side in map(int, re.findall(r"\d+", topology.partition(":")[2])) if side > 1]
    return len(sides) == 3 or (len(sides) == 2 and sides[0] == sides[1] >= 4)


def _alike(spmd: SpmdProgram) -> dict[int, int]:
    """For every buffer the first that is computed alike, itself if none before is."""
    first: dict[tuple[object, ...], int] = {}
    found: dict[int, int] = {}
    for item in _all(spmd.instructions):
        if isinstance(item, Run):
            op = spmd.program.operations[item.op]
            inputs = tuple(found.get(b, b) for b in item.inputs)
            for number, buffer in enumerate(item.outputs):
                type_ = spmd.buffers[buffer].type
                if op.short == "reverse" and 1 in type_.shape:
                    found[buffer] = inputs[0]
                else:
                    key = op.kind, op.source, inputs, number, type_
                    found[buffer] = first.setdefault(key, buffer)
        elif isinstance(item, Move) and not item.again:
            source = found.get(item.input, item.input)
            found[item.output] = first.setdefault((item.step, source), item.output)
    return found


def _rounded(spmd: SpmdProgram) -> set[int]:
    """The buffers of which products alone read the elements, wherever those are moved before."""
    readers: dict[int, list[tuple[str, Iterable[int]]]] = {}

    def note(buffers: Iterable[int], kind: str = "other", made: Iterable[int] = ()) -> None:
        for buffer in buffers:
            readers.setdefault(buffer, []).append((kind, made))

    note(spmd.results)
    items = list(_all(spmd.instructions))
    for item in items:
        if isinstance(item, Run):
            note(item.inputs, spmd.program.operations[item.op].short, item.outputs)
        elif isinstance(item, Move):
            note([item.input], item.step.kind, [item.output])
        elif isinstance(item, Section):
            note(item.results)
        elif isinstance(item, Case):
            note([item.index])
        else:
            note(item.inputs)
    found: set[int] = set()
    for item in reversed(items):
        if isinstance(item, Run | Move):
            for buffer in item.outputs if isinstance(item, Run) else [item.output]:
                uses = readers.get(buffer, [])
                if uses and all(
                    kind in _PRODUCTS or (kind in _MOVING and found.issuperset(made))
                    for kind, made in uses
                ):
                    found.add(buffer)
    return found


def _all(instructions: Iterable[Instruction]) -> Iterator[Instruction | Section]:
    """Instructions and sections, those of loops and branches included."""
    for item in instructions:
        yield item
        sections: tuple[Section, ...] = ()
        if isinstance(item, While):
            sections = item.condition, item.body
        elif isinstance(item, Case):
            sections = item.sections
        for section in sections:
            yield section
            yield from _all(section.instructions)
