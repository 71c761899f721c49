"""Fusion by the compiler: which values are stored in memory, and which exist only inside kernels.

A kernel is an operation whose result is stored, with all the operations that are computed inside
it. Cheap producers are recomputed in every kernel that reads them. So a stored value lives until
the last kernel that reads it, directly or through such producers.

All of this is a property of the program and of the compiler, found once; nothing here depends on a
tiling.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

from partita.cost.devices.hardware import Kernels
from partita.cost.kernels.storage import Storage, computes_operands
from partita.program.ir import Program


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Kernels of a program, by operation and value."""

    program: Program
    stored: tuple[bool, ...]
    """True for each value that is stored; arguments and constants are."""
    kernels: tuple[int, ...]
    """The operations that are kernels, in program order."""
    reads: dict[int, tuple[tuple[int, int], ...]]
    """The (operation, operand number) pairs in each kernel that read stored values, each once."""
    inside: dict[int, list[int]]
    """Kernels that compute each operation."""
    free: frozenset[int] = frozenset()
    """Kernels that do nothing: constraints on values already in memory."""
    again: frozenset[int] = frozenset()
    """Values that are stored only for those readers that cannot recompute them."""
    products: bool = True
    """True if products can compute their operands inside their own kernel."""
    in_place: frozenset[tuple[int, int]] = frozenset()
    """The (operation, operand number) pairs of operands that kernels change in place, without those
    of window updates."""
    called: frozenset[int] = frozenset()
    """Operations, other than products, that library calls end with."""

    def reads_memory(self, value: int, op: int) -> bool:
        """Returns whether an operation that reads a stored value reads it from memory."""
        if value not in self.again:
            return True
        return not computes_operands(self.program.operations[op].traits, self.products)

    @cached_property
    def order(self) -> dict[int, int]:
        """Position of every kernel in an order that does not keep values longer than needed.

        Kernels run in program order, one that goes on with a product in the place of the product.
        But one that is ready and frees at least as much as it allocates (an optimizer update of a
        gradient just made) runs at once.
        """
        return _in_order(self)

    @cached_property
    def _products(self) -> dict[int, int]:
        """Operation of the product in every kernel that goes on with one."""
        operations = self.program.operations
        products = [op for op in self.inside if operations[op].traits.product]
        return {k: op for op in products for k in self.inside[op] if k != op}

    def start(self, kernel: int) -> int:
        """Returns the first operation of a kernel."""
        return self._products.get(kernel, kernel)

    @cached_property
    def waits(self) -> dict[int, int]:
        """Scatter that alone changes a kernel's result in place, by kernel, which may then run just
        before the scatter."""
        operations, found = self.program.operations, dict[int, int]()
        for op, number in sorted(self.in_place):
            value = operations[op].operands[number]
            maker = self.program.values[value].producer
            if maker is None or maker not in self.reads or self._kernels_reading[value] != {op}:
                continue
            if operations[maker].region == operations[op].region:
                found[maker] = op
        return found

    def inputs(self, kernel: int) -> list[int]:
        """Returns the stored values that a kernel reads."""
        operations = self.program.operations
        return [operations[op].operands[number] for op, number in self.reads[kernel]]

    @cached_property
    def _kernels_reading(self) -> dict[int, set[int]]:
        """Kernels that read every stored value."""
        found: dict[int, set[int]] = {}
        for kernel in self.kernels:
            for value in self.inputs(kernel):
                found.setdefault(value, set()).add(kernel)
        return found


_ALL = Kernels(True, "all that any compiler does")


def analyse_fusion(
    program: Program, uses: list[list[tuple[int, int]]], kernels: Kernels = _ALL
) -> Fusion:
    """Finds the kernels of a program.

    Args:
      program: the program.
      uses: its uses, by value.
      kernels: what the compiler computes in one kernel.
    """
    constants = frozenset(v for constant in program.constants for v in constant.values)
    storage = Storage(program, _tested(program, uses), kernels)
    for op in program.operations:
        if not constants.issuperset(op.results):  # else it is in memory before, as arguments are
            storage.decide(op)
    storage.settle()
    stored, named = storage.stored, storage.named
    roots = tuple(
        op.index
        for op in program.operations
        if any(stored[v] for v in op.results) and not constants.issuperset(op.results)
    )
    reads: dict[int, tuple[tuple[int, int], ...]] = {}
    inside: dict[int, list[int]] = {}
    for kernel in roots:
        reads[kernel], computed = _trace(program, storage, kernel)
        for each in computed:
            inside.setdefault(each, []).append(kernel)
    free = frozenset(k for k in roots if not named.isdisjoint(program.operations[k].results))
    return Fusion(
        program,
        tuple(stored),
        roots,
        reads,
        inside,
        free,
        frozenset(storage.again),
        storage.products,
        frozenset(storage.in_place),
        frozenset(storage.calls.ends.values()),
    )


def _tested(program: Program, uses: list[list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Returns the uses of values without the conditions of loops with a known trip count. Compiled,
    such a loop counts, and computes no condition."""
    counted = {loop.choose for loop in program.loops if loop.trips is not None}
    found = uses.copy()
    for choose in counted:
        (predicate,) = program.operations[choose].operands
        found[predicate] = [use for use in uses[predicate] if use[0] not in counted]
    return found


def _trace(
    program: Program, storage: Storage, kernel: int
) -> tuple[tuple[tuple[int, int], ...], set[int]]:
    """Returns the operands that a kernel reads from memory, and the operations that it computes."""
    operations, values = program.operations, program.values
    found: dict[int, tuple[int, int]] = {}
    entered = {kernel}
    stack = [kernel]
    while stack:
        op = operations[stack.pop()]
        for number, value in enumerate(op.operands):
            again = value in storage.again and computes_operands(op.traits, storage.products)
            if storage.stored[value] and not again:
                found.setdefault(value, (op.index, number))
            else:
                producer = values[value].producer
                if producer is not None and producer not in entered:
                    entered.add(producer)
                    stack.append(producer)
    return tuple(found.values()), entered


def _in_order(fusion: Fusion) -> dict[int, int]:
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

    for kernel in sorted(fusion.kernels, key=fusion.start):
        run(kernel)
    return order
