"""Values in the memory of the host instead of that of the devices.

A program states the memory of some operations, arguments and results. Values that are cut out of
these, concatenated or carried through a loop stay there: a stack of offloaded activations is never
on a device.
"""

from __future__ import annotations

from partita.program.ir import Operation, Program
from partita.program.op_traits import PASSING

HOST = ("pinned_host", "unpinned_host")
"""JAX's names of memories that belong to the host."""


def on_host(program: Program) -> frozenset[int]:
    """Returns the values of a program that are in host memory."""
    found = {program.arguments[number] for number in program.argument_memory}
    if not found and not any(op.memory in HOST for op in program.operations):
        return frozenset()
    uses, count = program.uses(), -1
    while count != len(found):
        count = len(found)
        for op in program.operations:
            if _stays(op, found):
                found.update(op.results)
                found.update(v for v in op.operands if _is_made_for(program, v, uses[v], found))
    return frozenset(found)


def _stays(op: Operation, found: set[int]) -> bool:
    """Returns whether the results of an operation are in host memory, as far as is known."""
    if op.memory:
        return op.memory in HOST
    traits = op.traits
    if traits.writes_window:
        return op.operands[0] in found or op.operands[1] in found
    passes = traits.read_through or traits.slices or traits.renames or op.kind in PASSING
    return passes and any(v in found for v in op.operands)


def _is_made_for(
    program: Program, value: int, uses: list[tuple[int, int]], found: set[int]
) -> bool:
    """Returns whether a constant-like value, such as an empty stack, is only for the host."""
    producer = program.values[value].producer
    if producer is None or not program.operations[producer].traits.free:
        return False
    if not program.values[value].type.shape:
        return False
    return all(set(program.operations[op].results) <= found for op, _ in uses)
