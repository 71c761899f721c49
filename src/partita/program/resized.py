"""Programs with other sizes of some dimensions, to find how these change the cost.

A resized program has the same operations and can be analysed, tiled, lowered and estimated; its
module's text keeps the old sizes and cannot run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from partita.program.ir import Program
from partita.program.rule import Rule

Dim = tuple[int, int]
"""A value and one of its dimensions."""


def resized(program: Program, dims: Iterable[Dim], old: int, new: int) -> Program | None:
    """Returns the program with another size of these dimensions, and of those that depend on them.

    Factors follow their dimensions, dimensions their factors. A dimension that is made of several
    factors is their product.

    Args:
      program: the program.
      dims: values with dimensions; those that are of size `old` change.
      old: their size.
      new: their size then.

    Returns:
      The program; None if it is unclear which size follows somewhere.
    """
    shapes = [list(value.type.shape) for value in program.values]
    changed = {(v, d) for v, d in dims if shapes[v][d] == old}
    if not changed:
        return None
    for v, d in changed:
        shapes[v][d] = new
    sizes = [[factor.size for factor in op.rule.factors] for op in program.operations]
    users: dict[int, list[int]] = {}
    for op in program.operations:
        for v in (*op.operands, *op.results):
            users.setdefault(v, []).append(op.index)
    waiting = dict.fromkeys(op for v, _ in sorted(changed) for op in users[v])
    while waiting:
        number = next(iter(waiting))
        del waiting[number]
        moved = _settle(program, number, shapes, sizes[number], old, new)
        if moved is None:
            return None
        waiting |= dict.fromkeys(op for v in moved for op in users[v])
    return dataclasses.replace(
        program,
        values=tuple(
            dataclasses.replace(v, type=dataclasses.replace(v.type, shape=tuple(shapes[v.index])))
            for v in program.values
        ),
        operations=tuple(
            dataclasses.replace(op, rule=_with_sizes(op.rule, sizes[op.index]))
            for op in program.operations
        ),
    )


def _settle(
    program: Program, number: int, shapes: list[list[int]], sizes: list[int], old: int, new: int
) -> dict[int, None] | None:
    """Makes factors and dimensions of an operation fit each other again.

    Returns:
      The values that have changed; None if they cannot be made to fit.
    """
    op = program.operations[number]
    rule, moved = op.rule, dict[int, None]()
    sides = [*zip(op.operands, rule.operands, strict=True)]
    sides += zip(op.results, rule.results, strict=True)
    places = [
        (v, dim, made_of)
        for v, tensor in sides
        for dim, made_of in enumerate(tensor)
        if made_of and _fits(program, number, v, dim, made_of)
    ]
    for _ in range(2):  # what one dimension says of a factor counts for those before it, too
        for v, dim, made_of in places:
            size, of_factors = shapes[v][dim], math.prod(sizes[f] for f in made_of)
            if size == of_factors:
                continue
            if size == program.values[v].type.shape[dim]:
                shapes[v][dim] = of_factors
                moved[v] = None
                continue
            follows = [f for f in made_of if sizes[f] == old]
            if len(follows) != 1 or of_factors // old * new != size:
                return None
            sizes[follows[0]] = new
    return moved


def _fits(program: Program, number: int, value: int, dim: int, made_of: tuple[int, ...]) -> bool:
    """Returns whether a dimension is the full product of its factors, not a slice of it."""
    factors = program.operations[number].rule.factors
    return program.values[value].type.shape[dim] == math.prod(factors[f].size for f in made_of)


def _with_sizes(rule: Rule, sizes: list[int]) -> Rule:
    factors = tuple(
        factor if factor.size == size else dataclasses.replace(factor, size=size)
        for factor, size in zip(rule.factors, sizes, strict=True)
    )
    return rule if factors == rule.factors else dataclasses.replace(rule, factors=factors)
