"""What the TPU compiler makes of the collectives that a plan makes explicit, and when.

It keeps most of them one to one. The rules by which it does not were found with libtpu 0.0.52, by
compiling single collectives for topologies of v5e, v5p and v6e and following them from pass to
pass; `tests/verify/test_rewrites.py` compiles them again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from partita.program.ir import Operation
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
    "merged": "a collective of what is computed by the same operations of the same lines, from "
    "the same, as the operand of an earlier one, is one with it; a reverse over dimensions of size "
    "1 counts as none",
    "after the loop": "a sum in the body of a loop that is only added to what the loop carries is "
    "done once, after the loop",
    "padded pieces": "a reduce_scatter pads its pieces to whole tiles, and collective_permutes "
    "hand on what has come to the wrong device; both is read from the compiled program, and "
    "counted as what was padded",
}
"""Rewrites that the TPU compiler is known for, by name: what it does, and when."""

_LANES = 128
"""Elements in a row of a TPU's registers."""
_PRODUCTS = {"dot_general", "convolution"}
_SHAPING = {"broadcast_in_dim", "convert", "reshape", "transpose"}
"""Operations of which the types and the rule say all."""
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
    alike, moved = _alike(spmd), set()
    accumulated = dict(_accumulated(spmd))
    found: list[tuple[Becomes, ...]] = []
    for number, collective in enumerate(spmd.collectives):
        exchange = exchange_of(collective, spmd.mesh)
        if number >= len(own):  # of a region, nothing more is known
            scattered = collective.kind == "reduce_scatter"
            found.append(_of_scatter(collective, None, exchange, everywhere) if scattered else ())
            continue
        move = own[number]
        becomes: tuple[Becomes, ...]
        if collective.kind == "reduce_scatter":
            becomes = _of_scatter(collective, move, exchange, everywhere)
        elif collective.kind == "all_gather":
            becomes = _of_gather(move, exchange, rounded)
        else:
            becomes = _narrowed(move, exchange, rounded)
        if move.output in accumulated:
            uncertain = (dataclasses.replace(b, always=False) for b in becomes)
            becomes = (*_after_loop(exchange, accumulated[move.output]), *uncertain)
        place = alike.get(move.output, move.output)
        if place in moved:
            becomes += (Becomes("merged", None, always=False),)
        moved.add(place)
        found.append(becomes)
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


def _after_loop(exchange: Exchange, trips: int) -> Iterator[Becomes]:
    for kind in dict.fromkeys((exchange.kind, "all_reduce")):
        made = dataclasses.replace(exchange, kind=kind)
        yield Becomes("after the loop", made, always=False, of=trips)


def _accumulated(spmd: SpmdProgram) -> Iterator[tuple[int, int]]:
    """Sums that loop bodies only add to what they carry: the buffer, and the trips of the loop."""
    for loop in _all(spmd.instructions):
        trips = loop.loop.trips if isinstance(loop, While) else None
        if not isinstance(loop, While) or trips is None or trips == 1:
            continue
        readers: dict[int, list[Instruction]] = {}
        for item in loop.body.instructions:
            for buffer in _read(item):
                readers.setdefault(buffer, []).append(item)
        for item in loop.body.instructions:
            if not isinstance(item, Move) or item.step.kind not in ("all_reduce", "reduce_scatter"):
                continue
            if _is_added(spmd, loop.body, readers, item.output):
                yield item.output, trips


def _is_added(
    spmd: SpmdProgram, body: Section, readers: dict[int, list[Instruction]], buffer: int
) -> bool:
    """Whether a buffer of a loop body, wherever its elements are moved, is only added to something
    that the loop carries."""
    reading = readers.get(buffer, [])
    if len(reading) != 1 or buffer in body.results:
        return False
    (item,) = reading
    if isinstance(item, Move):
        return item.step.kind in _MOVING and _is_added(spmd, body, readers, item.output)
    if not isinstance(item, Run):
        return False
    kind = spmd.program.operations[item.op].short
    sizes = [spmd.buffers[b].type.elements for b in (buffer, *item.outputs)]
    if kind in _MOVING or (kind == "reduce" and sizes == sizes[:1] * 2):
        return _is_added(spmd, body, readers, item.outputs[0])
    others = [b for b in item.inputs if b != buffer]
    return (
        kind == "add"
        and len(others) == 1
        and others[0] in body.arguments
        and body.arguments.index(others[0])
        in [number for number, b in enumerate(body.results) if b == item.outputs[0]]
    )


def _read(item: Instruction) -> tuple[int, ...]:
    """The buffers that an instruction reads."""
    match item:
        case Move():
            return (item.input,)
        case Case():
            return (item.index,)
        case _:
            return item.inputs


def _is_vector(step: Step) -> bool:
    """Whether all dimensions but that which is gathered or scattered have size 1."""
    return all(size == 1 for dim, size in enumerate(step.before.shape) if dim != step.dim)


def _runs_along_sides(topology: str) -> bool:
    """Whether a sum over all devices runs along the sides of the torus at once."""
    sides = [side for side in map(int, re.findall(r"\d+", topology.partition(":")[2])) if side > 1]
    return len(sides) == 3 or (len(sides) == 2 and sides[0] == sides[1] >= 4)


def _alike(spmd: SpmdProgram) -> dict[int, int]:
    """For every buffer the first that is computed alike, itself if none before is.

    Sums count as alike that differ in factors only which the sum does not run over: the compiler
    takes those out.
    """
    first: dict[tuple[object, ...], int] = {}
    found: dict[int, int] = {}
    made: dict[int, Run] = {}
    for item in _all(spmd.instructions):
        if isinstance(item, Run):
            op = spmd.program.operations[item.op]
            inputs = tuple(found.get(b, b) for b in item.inputs)
            for number, buffer in enumerate(item.outputs):
                made[buffer] = item
                type_ = spmd.buffers[buffer].type
                if op.short == "reverse" and 1 in type_.shape:
                    found[buffer] = inputs[0]
                    continue
                same = op.rule if op.short in _SHAPING else op.source
                key: tuple[object, ...] = op.kind, same, inputs, number, type_
                if op.short == "reduce" and op.combine == "add" and len(item.outputs) == 1:
                    summed = _summed(op)
                    factors = _factors(spmd, made, item.inputs[0], summed)
                    alike = tuple(sorted(found.get(b, b) for b in factors))
                    key = op.kind, alike, summed, type_
                found[buffer] = first.setdefault(key, buffer)
        elif isinstance(item, Move) and not item.again:
            source = found.get(item.input, item.input)
            found[item.output] = first.setdefault((item.step, source), item.output)
    return found


def _summed(op: Operation) -> tuple[int, ...]:
    """The dimensions that a sum runs over."""
    kept = {factor for dimension in op.rule.results[0] for factor in dimension}
    return tuple(d for d, f in enumerate(op.rule.operands[0]) if kept.isdisjoint(f))


def _factors(
    spmd: SpmdProgram, made: dict[int, Run], buffer: int, summed: tuple[int, ...]
) -> list[int]:
    """The buffers whose product is summed, without those that are the same for all summands."""
    item = made.get(buffer)
    if item is None:
        return [buffer]
    op = spmd.program.operations[item.op]
    if op.short in ("multiply", "negate"):
        return [f for b in item.inputs for f in _factors(spmd, made, b, summed)]
    if op.short == "broadcast_in_dim":
        varying = {factor for dimension in op.rule.operands[0] for factor in dimension}
        if all(varying.isdisjoint(op.rule.results[0][d]) for d in summed):
            return []
    return [buffer]


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
