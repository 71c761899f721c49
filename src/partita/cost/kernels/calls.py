"""Products as library calls: the arrays that they read from memory, and the work they include.

A library (cuBLAS, cuDNN) reads arrays from memory. It takes each matrix as it is stored or
transposed, and it may add one array to the result. Kernels before and after do everything else.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from partita.cost.kernels.relayouts import laid_anew
from partita.program.ir import Operation, Program
from partita.program.op_traits import CONSTRAINT


@dataclasses.dataclass(frozen=True)
class Calls:
    """The calls of a program, by operation and value."""

    read: frozenset[int] = frozenset()
    """Values that the calls read, which are therefore in memory, and values that are stored because
    results of calls change their memory layout."""
    views: frozenset[int] = frozenset()
    """Values that are only views of arrays in memory."""
    ends: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Last operation of a product's call that includes more than the product, by its value."""


def library_calls(program: Program, uses: Sequence[Sequence[tuple[int, int]]]) -> Calls:
    """Finds the library calls of a program's products.

    Args:
      program: the program.
      uses: its uses, by value.
    """
    read: set[int] = set()
    views: set[int] = set()
    ends: dict[int, int] = {}
    since = _since(program)
    for op in program.operations:
        if not op.traits.product:
            continue
        for number in range(min(len(op.operands), 2)):
            value, passed = _lies_as(program, op, number)
            read.add(value)
            views.update(passed)
        found = _end(program, uses, op, since)
        if found is not None:
            end, added = found
            ends[op.results[0]] = end
            read.update(added)
    views -= read
    moved = {v for op in ends.values() for v in program.operations[op].results}
    read |= laid_anew(program, uses, moved | views)
    return Calls(frozenset(read), frozenset(views), ends)


def _lies_as(program: Program, op: Operation, number: int) -> tuple[int, list[int]]:
    """Returns the value that a product reads as an operand, and the views of it in between."""
    value, passed = op.operands[number], list[int]()
    order = tuple(range(len(op.rule.operands[number])))
    rearranged = False
    while (maker := _maker(program, value)) is not None:
        if maker.traits.renames or maker.kind == CONSTRAINT:
            rearranged = True
        elif maker.traits.transposes and not rearranged and not op.traits.convolution:
            order = tuple(order[dim] for dim in _order(maker))
            if not _is_matrix(op, number, order):
                break
        else:
            break
        passed.append(value)
        value = maker.operands[0]
    return value, passed


def _order(transpose: Operation) -> tuple[int, ...]:
    """Returns the place in the result of every dimension of a transpose's operand."""
    (made,) = transpose.rule.results
    places = {factors: place for place, factors in enumerate(made)}
    return tuple(places[factors] for factors in transpose.rule.operands[0])


def _is_matrix(op: Operation, number: int, order: Sequence[int]) -> bool:
    """Returns whether an operand with its dimensions in this order is a matrix, or a transposed
    one, of contracted by free elements for every index of the batch."""
    first, second = (frozenset(f for dim in each for f in dim) for each in op.rule.operands[:2])
    made = frozenset(f for dim in op.rule.results[0] for f in dim)
    own = op.rule.operands[number]
    roles = []
    for place in order:
        factors = frozenset(own[place])
        if factors <= first & second:
            roles.append("batch" if factors <= made else "contracted")
        else:
            roles.append("free")
    changes = sum(a != b for a, b in itertools.pairwise(roles))
    batch = [place for place, role in zip(order, roles, strict=True) if role == "batch"]
    return (
        roles[: len(batch)] == ["batch"] * len(batch)
        and batch == sorted(batch)
        and changes < len(set(roles))
    )


def _end(
    program: Program,
    uses: Sequence[Sequence[tuple[int, int]]],
    product: Operation,
    since: Sequence[int],
) -> tuple[int, list[int]] | None:
    """Returns the last operation of a product's call, unless that is the product, and the other
    values that the call reads."""
    if product.traits.convolution:
        return None
    value, results = product.results[0], frozenset(program.results)
    plain = True
    while value not in results and len(uses[value]) == 1:
        ((reader, number),) = uses[value]
        op = program.operations[reader]
        if op.region != product.region:
            return None
        if op.traits.renames:
            plain, value = False, op.results[0]
            continue
        if op.traits.transposes and plain and _is_transposed(product, op):
            return reader, []
        if op.traits.combiner == "add":
            other = op.operands[1 - number]
            if other != value and since[other] < product.index:
                return reader, [] if _stretched(program, other) else [other]
        return None
    return None


def _is_transposed(product: Operation, transpose: Operation) -> bool:
    """Returns whether a product makes its result transposed if it swaps its operands."""
    first, second = (
        frozenset(f for dim in each for f in dim) for each in product.rule.operands[:2]
    )
    made = [frozenset(dim) for dim in product.rule.results[0]]
    batch = sum(dim <= first & second for dim in made)
    rows = sum(dim <= first for dim in made) - batch
    dims = tuple(range(len(made)))
    swapped = (*dims[:batch], *dims[batch + rows :], *dims[batch : batch + rows])
    order = _order(transpose)
    return tuple(order[dim] for dim in swapped) == dims


def _stretched(program: Program, value: int) -> bool:
    """Returns whether a value is a smaller one, broadcast."""
    maker = _maker(program, value)
    while maker is not None and maker.traits.renames:
        maker = _maker(program, maker.operands[0])
    return maker is not None and maker.traits.read_through and not maker.traits.rearranges


def _maker(program: Program, value: int) -> Operation | None:
    producer = program.values[value].producer
    return None if producer is None else program.operations[producer]


def _since(program: Program) -> list[int]:
    """Returns the operation after which each value is available; -1 for arguments. A value that is
    read through or converted is available as early as its operand."""
    since = [-1] * len(program.values)
    for op in program.operations:
        at = op.index
        if op.traits.widens:
            at = max((since[v] for v in op.operands), default=-1)
        for v in op.results:
            since[v] = at
    return since
