"""Relayouts: copies of products whose elements are in another order in memory than is needed.

XLA does not move elements for a transpose of a product's result: elementwise operations keep the
order in which the product has made it. If such a value meets the result of another product, in
another order, the second is copied. The kernel that copies it also runs the elementwise operations
after it, up to a value that several others read, and does not run again for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from partita.program.ir import Operation, Program

Uses = Sequence[Sequence[tuple[int, int]]]


def laid_anew(program: Program, uses: Uses, moved: Collection[int]) -> set[int]:
    """Returns the values that kernels make and store to relay out results of products.

    Args:
      program: the program.
      uses: its uses, by value.
      moved: values that no kernel makes by moving elements: transposes that are part of products.
    """
    turned = _turned(program, moved)
    found = set()
    for op in program.operations:
        if op.traits.product and op.results[0] not in turned and uses[op.results[0]]:
            last = _last(program, uses, turned, op)
            if last != op.results[0] and _meets(program, uses, turned, last):
                found.add(last)
    return found


def _turned(program: Program, moved: Collection[int]) -> set[int]:
    """Returns the values whose memory order differs from that of their dimensions."""
    values, turned, made = program.values, set[int](), set[int]()
    for op in program.operations:
        for v in op.results:
            if op.traits.product:
                made.add(v)
            elif op.traits.transposes and v not in moved:
                if op.operands[0] in made:
                    turned.add(v)
            elif op.traits.renames:
                turned |= {v} & {v for o in op.operands if o in turned}
                made |= {v} & {v for o in op.operands if o in made}
            elif op.traits.elementwise:
                same = [
                    o for o in op.operands if values[o].type.elements == values[v].type.elements
                ]
                if not turned.isdisjoint(same):
                    turned.add(v)
    return turned


def _last(program: Program, uses: Uses, turned: Collection[int], product: Operation) -> int:
    """Returns the last value of the elementwise chain after a product: one that several read, or
    that meets a value in another order."""
    value = product.results[0]
    while len(uses[value]) == 1:
        reader = program.operations[uses[value][0][0]]
        if not reader.traits.elementwise or reader.region != product.region:
            break
        if reader.results[0] in turned:
            break
        value = reader.results[0]
    return value


def _meets(program: Program, uses: Uses, turned: Collection[int], value: int) -> bool:
    """Returns whether elementwise operations on a value meet one in another memory order."""
    region = program.operations[program.values[value].producer or 0].region
    seen, rest = {value}, [value]
    while rest:
        for use, _ in uses[rest.pop()]:
            op = program.operations[use]
            if not op.traits.elementwise or op.region != region:
                continue
            if op.results[0] in turned:
                return True
            rest += [v for v in op.results if v not in seen]
            seen.update(op.results)
    return False
