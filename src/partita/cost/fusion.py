"""What a compiler fuses: which values are stored in memory, which exist only inside a kernel.

A kernel is an operation whose result is stored, with all the operations that are computed inside
of it. Cheap producers are computed again in every kernel that reads them; so a value that is
stored lives until the last kernel that reads it, directly or through such producers.

All of this is a property of the program, found once; nothing here depends on a tiling.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

from partita.program.ir import BARRIER, CARRY, CONSTRAINT, JOIN, Operation, Program
from partita.program.operations import ELEMENTWISE

_EXPENSIVE = frozenset(
    f"stablehlo.{kind}"
    for kind in """atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one
    logistic power remainder rsqrt sine sqrt tan tanh""".split()
)
"""Elementwise kinds that are not worth computing twice."""

_SHAPING = frozenset(
    f"stablehlo.{kind}"
    for kind in """broadcast_in_dim iota constant reshape transpose slice pad concatenate reverse
    dynamic_slice""".split()
)

FUSIBLE = ELEMENTWISE | _SHAPING | {CONSTRAINT}
"""Kinds that can be computed inside the kernel that reads them."""

_READS_FUSED = FUSIBLE | {"stablehlo.reduce"}
"""Kinds that can compute their operands inside their own kernel."""

_INTO_ANY = frozenset(
    {
        "stablehlo.convert",
        "stablehlo.broadcast_in_dim",
        "stablehlo.reshape",
        "stablehlo.transpose",
        "stablehlo.constant",
        "stablehlo.iota",
    }
)
"""Kinds so cheap that matrix units read through them."""


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Kernels of a program, by operation and value."""

    program: Program
    stored: tuple[bool, ...]
    """Whether each value is stored; arguments and constants are."""
    kernels: tuple[int, ...]
    """The operations that are kernels, in program order."""
    reads: dict[int, tuple[tuple[int, int], ...]]
    """For each kernel, the (operation, operand number) pairs inside it that read a stored value,
    each value once."""
    inside: dict[int, list[int]]
    """For every operation, the kernels that compute it."""
    free: frozenset[int] = frozenset()
    """Kernels that do nothing: constraints of what is in memory already."""

    @cached_property
    def order(self) -> dict[int, int]:
        """Position of every kernel in a schedule that does not keep values longer than needed.

        Kernels run in program order, but one that is ready and frees at least as much as it
        allocates (an optimizer update of a gradient just made) runs at once.
        """
        return _schedule(self)

    def inputs(self, kernel: int) -> list[int]:
        """The stored values that a kernel reads."""
        operations = self.program.operations
        return [operations[op].operands[number] for op, number in self.reads[kernel]]


def analyse_fusion(program: Program, uses: list[list[tuple[int, int]]]) -> Fusion:
    """Finds the kernels of a program."""
    results = frozenset(program.results)
    constants = frozenset(v for constant in program.constants for v in constant.values)
    stored = [True] * len(program.values)
    named: set[int] = set()
    large: list[frozenset[int]] = [frozenset({v.index}) for v in program.values]
    for op in program.operations:
        if constants.issuperset(op.results):
            continue  # these are in memory before the program starts, as arguments are
        for v in op.results:
            read = frozenset().union(*(large[o] for o in op.operands))
            size = program.values[v].type.bytes
            read = frozenset(r for r in read if 4 * program.values[r].type.bytes >= size)
            operand = op.operands[0] if op.kind == CONSTRAINT else v
            if operand != v and (stored[operand] or operand in named):
                named.add(v)
            kept = _is_stored(program, op, uses[v], len(read), v in named)
            if v not in results and not kept:
                stored[v], large[v] = False, read
    kernels = tuple(
        op.index
        for op in program.operations
        if any(stored[v] for v in op.results) and not constants.issuperset(op.results)
    )
    reads: dict[int, tuple[tuple[int, int], ...]] = {}
    inside: dict[int, list[int]] = {}
    for kernel in kernels:
        reads[kernel], computed = _trace(program, stored, kernel)
        for each in computed:
            inside.setdefault(each, []).append(kernel)
    free = frozenset(k for k in kernels if not named.isdisjoint(program.operations[k].results))
    return Fusion(program, tuple(stored), kernels, reads, inside, free)


def _is_stored(
    program: Program, producer: Operation, uses: list[tuple[int, int]], inputs: int, named: bool
) -> bool:
    """Whether a value goes to memory; `inputs` is how many large stored values it is made from.

    With several uses it is worth computing again only if that reads no more than the value
    itself would be. What is only `named`, by a constraint, is in memory already.
    """
    if producer.kind not in FUSIBLE:
        return True
    if len(uses) > 1 and (producer.kind in _EXPENSIVE or inputs > 1):
        return True
    readers = [program.operations[op] for op, _ in uses]
    return any(
        (reader.kind not in _READS_FUSED and producer.kind not in _INTO_ANY and not named)
        or reader.region != producer.region
        or reader.kind in (CARRY, JOIN, BARRIER)
        for reader in readers
    )


def _trace(
    program: Program, stored: list[bool], kernel: int
) -> tuple[tuple[tuple[int, int], ...], set[int]]:
    """What a kernel reads, and the operations that it computes."""
    operations, values = program.operations, program.values
    found: dict[int, tuple[int, int]] = {}
    entered = {kernel}
    stack = [kernel]
    while stack:
        op = operations[stack.pop()]
        for number, value in enumerate(op.operands):
            if stored[value]:
                found.setdefault(value, (op.index, number))
            else:
                producer = values[value].producer
                if producer is not None and producer not in entered:
                    entered.add(producer)
                    stack.append(producer)
    return tuple(found.values()), entered


def _schedule(fusion: Fusion) -> dict[int, int]:
    program = fusion.program
    aliased = {program.results[r] for r in program.aliases.values()}
    results = frozenset(program.results)
    readers: dict[int, int] = {}
    waiting: dict[int, int] = {}
    wakes: dict[int, list[int]] = {}
    for kernel in fusion.kernels:
        inputs = set(fusion.inputs(kernel))
        for value in inputs:
            readers[value] = readers.get(value, 0) + 1
        made = [v for v in inputs if program.values[v].producer is not None]
        waiting[kernel] = len(made)
        for value in made:
            wakes.setdefault(value, []).append(kernel)
    order: dict[int, int] = {}

    def frees_enough(kernel: int) -> bool:
        allocated = sum(
            program.values[v].type.bytes
            for v in program.operations[kernel].results
            if v not in aliased
        )
        freed = sum(
            program.values[v].type.bytes
            for v in fusion.inputs(kernel)
            if readers[v] == 1 and program.values[v].producer is not None and v not in results
        )
        return allocated <= freed

    def run(kernel: int) -> None:
        stack = [kernel]
        while stack:
            each = stack.pop()
            if each in order:
                continue
            order[each] = len(order)
            for value in fusion.inputs(each):
                readers[value] -= 1
            for value in program.operations[each].results:
                for reader in wakes.get(value, ()):
                    waiting[reader] -= 1
                    near = program.operations[reader].region == program.operations[each].region
                    if waiting[reader] == 0 and near and frees_enough(reader):
                        stack.append(reader)

    for kernel in fusion.kernels:
        run(kernel)
    return order
