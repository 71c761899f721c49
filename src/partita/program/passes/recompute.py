"""Recomputation: values are computed again right before a later use, rather than kept until then.

The operations that make them are repeated. They read their inputs behind an optimization barrier,
or the compiler would merge each with the operation that it repeats. The barrier also holds what the
later use reads besides, in a backward pass the gradient: without it the compiler could compute the
values again at once. This is what `jax.checkpoint` does, for any values of a program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Iterable, Iterator

from partita.program.blocks import Block, Item, blocks_of
from partita.program.ir import Program
from partita.program.passes.copier import Copier, rebuilt
from partita.program.passes.rewritten import Rewritten


def recompute(program: Program, values: Collection[int], before: int) -> Rewritten:
    """Returns a program that computes values again before their first use after a position.

    Args:
      program: the program.
      values: to be computed again. All are results of operations in one region; other inputs of
        these operations are kept until then, constants are repeated.
      before: number of an operation. Uses by this operation and later ones read the values that are
        computed again; a loop or branch does if all of it is there.

    Raises:
      ValueError: a value is an argument, or made by a loop, branch or barrier; values are made in
        different regions; or none is used after the position.
    """
    plan = _planned(program, values, before)

    def edit(copier: Copier, item: Item) -> Iterator[Item]:
        if item == plan.target:
            with copier.aside(keep=plan.read):
                if plan.held:
                    yield copier.hold(plan.held, program.operations[_first(item)])
                for op in plan.repeated:
                    yield copier.copy(op)
        if item not in plan.dropped:
            yield copier.copy(item)

    return rebuilt(program, edit)


@dataclasses.dataclass(frozen=True)
class _Recomputation:
    target: Item
    """First item that reads a value that is computed again."""
    held: tuple[int, ...]
    """Values that pass the barrier."""
    repeated: tuple[int, ...]
    """Operations that run again, in order."""
    read: frozenset[int]
    """Values that the target and later items read from there."""
    dropped: frozenset[int]
    """Operations that nothing needs before: they run only once, behind the barrier."""


def _planned(program: Program, values: Collection[int], before: int) -> _Recomputation:
    operations, constants = program.operations, _constants(program)
    makers = _makers(program, values)
    block = _block_of(program, operations[min(makers)].region)
    inside = set(block.operations())
    generated = {op for op in inside if constants.issuperset(operations[op].results)}
    makers |= _needed(program, (v for op in makers for v in operations[op].operands), generated)
    made = {v for op in makers for v in operations[op].results}
    others = [item for item in block.items if item not in makers]
    late = [item for item in others if _first(item) >= before]
    read = made.intersection(v for item in late for v in _reads(program, item))
    target = next((item for item in late if not read.isdisjoint(_reads(program, item))), None)
    if target is None:
        raise ValueError(f"no operation from {before} on reads what is to be computed again")
    if max(makers) > _first(target):
        raise ValueError("a value is made after the first use of what is to be computed again")
    repeated = _needed(program, read, makers)
    inputs = {v for op in repeated for v in operations[op].operands} - made - constants
    since = _made_since(program, before, target, made | constants)
    outside = (op.index for op in operations if op.index not in inside)
    early = [*(item for item in others if _first(item) < before), *outside]
    kept = {*program.results, *(v for item in early for v in _reads(program, item))}
    return _Recomputation(
        target,
        tuple(sorted(inputs | since)),
        tuple(sorted(repeated)),
        frozenset(read | since),
        frozenset(makers - _needed(program, kept, makers)),
    )


def _makers(program: Program, values: Collection[int]) -> set[int]:
    """Returns the operations that make some values; raises if they cannot run again."""
    found = set[int]()
    for value in values:
        producer = program.values[value].producer
        if producer is None or program.operations[producer].traits.treatment == "structure":
            raise ValueError(
                f"{program.describe(value)} is not made by an operation that can run again"
            )
        found.add(producer)
    regions = {program.operations[op].region for op in found}
    if len(regions) != 1:
        raise ValueError("the values to be computed again are not all made in one region")
    return found


def _block_of(program: Program, region: int) -> Block:
    """Returns the block that a region's own operations are in."""
    blocks = [program.body]
    while blocks:
        block = blocks.pop()
        if any(isinstance(i, int) and program.operations[i].region == region for i in block.items):
            return block
        for item in block.items:
            blocks += blocks_of(item)
    raise AssertionError(f"no block has operations of region {region}")


def _constants(program: Program) -> set[int]:
    """Returns the values that depend on no argument, such as a broadcast number."""
    found = set[int]()
    for op in program.operations:
        if op.traits.read_through and found.issuperset(op.operands):
            found.update(op.results)
    return found


def _needed(program: Program, values: Iterable[int], among: Container[int]) -> set[int]:
    """Returns those of some operations that have to run, one for another, to make values."""
    found, waiting = set[int](), list(values)
    while waiting:
        producer = program.values[waiting.pop()].producer
        if producer is not None and producer in among and producer not in found:
            found.add(producer)
            waiting += program.operations[producer].operands
    return found


def _made_since(program: Program, before: int, target: Item, without: set[int]) -> set[int]:
    """Returns a value, if there is one, that is made late enough for others to wait for it.

    That is the last one that the target reads, of those made from the position `before` on; else
    the last that any later operation reads. Broadcasts come last: behind a barrier they are stored.
    """
    first = _first(target)
    own = list(_reads(program, target))
    later = [v for op in program.operations[first:] for v in op.operands]
    for read, broadcasts in ((own, False), (later, False), (own, True)):
        late = [
            (producer, v)
            for v in read
            if (producer := program.values[v].producer) is not None
            and before <= producer < first
            and v not in without
            and (broadcasts or not program.operations[producer].traits.read_through)
        ]
        if late:
            return {max(late)[1]}
    return set()


def _reads(program: Program, item: Item) -> Iterator[int]:
    """Yields the values that an item reads."""
    for op in (item,) if isinstance(item, int) else item.operations():
        yield from program.operations[op].operands


def _first(item: Item) -> int:
    """Returns the first operation of an item."""
    return item if isinstance(item, int) else min(item.operations(), default=-1)
