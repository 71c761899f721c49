"""Operations that only say where elements are: reshapes, transposes and broadcasts."""

from __future__ import annotations

import math
from typing import Any

from partita.program.rule import Rule
from partita.stablehlo.mlir import ir
from partita.stablehlo.operations.entry import Entry, Types
from partita.stablehlo.operations.letters import (
    EDGE,
    Letters,
    SizesOf,
    becoming,
    flat,
    lettered,
    listed,
    shape,
)
from partita.stablehlo.rules.draft import blocked
from partita.stablehlo.versions import reshape_rule


def _transpose(op: Any) -> Letters:
    names = lettered(op.operands[0])
    return names, tuple(names[dim] for dim in op.attributes["permutation"])


def _broadcast(op: Any) -> Letters:
    operand, result = op.operands[0], op.results[0]
    made = shape(result)
    dims = list(op.attributes["broadcast_dimensions"])
    pairs = zip(shape(operand), dims, strict=True)
    return tuple(f"d{d}" if n == made[d] else EDGE for n, d in pairs), lettered(result)


def _renumber_broadcast(op: Any, sizes_of: SizesOf) -> None:
    operand, places = sizes_of(op.operands[0]), becoming(sizes_of(op.results[0]))
    dims = op.attributes["broadcast_dimensions"]
    op.attributes["broadcast_dimensions"] = ir.DenseI64ArrayAttr.get(
        flat(places[dim][: len(each)] for dim, each in zip(dims, operand, strict=True))
    )


def _letters_of_reshape(op: Any) -> Letters:
    """The same dimension where it is one on both sides; others are merged or split here."""
    sides = [[EDGE] * len(shape(value)) for value in (op.operands[0], op.results[0])]
    for number, group in enumerate(groups(op)):
        sizes = [
            [d for d in dims if shape(v)[d] > 1]
            for dims, v in zip(group, (op.operands[0], op.results[0]), strict=True)
        ]
        if len(sizes[0]) == len(sizes[1]) == 1:
            for side, (dim,) in zip(sides, sizes, strict=True):
                side[dim] = f"g{number}"
    return tuple(map(tuple, sides))


def groups(op: Any) -> list[tuple[list[int], list[int]]]:
    """The dimensions of a reshape's operand and result that hold the same elements, the least."""
    before, after = shape(op.operands[0]), shape(op.results[0])
    if 0 in before:
        return [(list(range(len(before))), list(range(len(after))))]
    found: list[tuple[list[int], list[int]]] = []
    left, right = list(range(len(before))), list(range(len(after)))
    while left or right:
        mine, theirs = left[:1], right[:1]
        a, b = math.prod(before[d] for d in mine), math.prod(after[d] for d in theirs)
        while a != b:
            if a < b:
                mine.append(left[len(mine)])
                a *= before[mine[-1]]
            else:
                theirs.append(right[len(theirs)])
                b *= after[theirs[-1]]
        left, right = left[len(mine) :], right[len(theirs) :]
        found.append((mine, theirs))
    return found


def _narrow_reshape(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Not sharded along factors that only its operand has, or only its result.

    They stand for a dimension that the other side does not have, not even as a part: `[8, 3]`
    made into `[3, 8]`.
    """
    rule = reshape_rule(op.attributes["sdy.sharding_rule"], rule, results[0].shape)
    sides = [
        {f for tensor in side for dim in tensor for f in dim}
        for side in (rule.operands, rule.results)
    ]
    cut = sorted(f for f in sides[0] ^ sides[1] if rule.factors[f].size > 1)
    return blocked(rule, cut, "reshape cuts this dimension otherwise")


ENTRIES = {
    "stablehlo.broadcast_in_dim": Entry(letters=_broadcast, renumber=_renumber_broadcast),
    "stablehlo.reshape": Entry(narrow=_narrow_reshape, letters=_letters_of_reshape),
    "stablehlo.transpose": Entry(letters=_transpose, renumber=listed("permutation")),
}
"""Entries of operations that rearrange or repeat elements, by kind."""
