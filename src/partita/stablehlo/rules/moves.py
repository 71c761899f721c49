"""Operations that move elements along a dimension: slices, padding, concatenation, reversal, rolls.

If operand and result are split alike, each device makes its shard of the result from a window of
the operand: the indices that end up there. Windows go on from device to device as the shards of the
result do, so the devices exchange what is missing, and nothing is gathered.

How many elements of the operand a window has follows from how many shards there are. So a dimension
that changes its size can be split into as many shards as divide both sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from partita.program.ir import TensorType
from partita.program.rule import FactorKind, Reach, Rule
from partita.stablehlo.rules.draft import Draft

Types = Sequence[TensorType]
Reads = Callable[[Any, Types, Types, int], tuple[Reach | None, ...] | None]
"""Function from an operation, types of operands and results, and a dimension, to what it reads.

It returns what each device reads of the dimension, for every operand that has dimensions; None
where the dimension is not moved.
"""


def sliced(op: Any, operands: Types, results: Types, dim: int) -> tuple[Reach | None, ...] | None:
    """Every `stride`-th element from `start` on."""
    start, stride = op.attributes["start_indices"][dim], op.attributes["strides"][dim]
    made = results[0].shape[dim]
    if made == operands[0].shape[dim]:
        return None
    return (Reach(made * stride, start, 1 - stride),)


def slice_rule(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Shards a dimension sliced to one index, too: its device contributes it, the others zeros.

    A dimension sliced to no index needs no communication.
    """
    draft = Draft(moving(sliced)(op, rule, operands, results))
    for dim, (size, made) in enumerate(zip(operands[0].shape, results[0].shape, strict=True)):
        if made < min(2, size):
            kind: FactorKind = "reduction" if made else "parallel"
            draft.operands[0][dim] = (draft.replace(draft.operands[0][dim], size, kind),)
            draft.results[0][dim] = ()
    return draft.rule()


def padded(op: Any, operands: Types, results: Types, dim: int) -> tuple[Reach | None, ...] | None:
    """Elements `interior + 1` apart, after the first `low` places."""
    low, high, interior = padding(op, dim)
    if not (low or high or interior):
        return None
    made, apart = results[0].shape[dim], interior + 1
    if made % apart:
        return (None,)
    return (Reach(made // apart, -(low // apart)),)


def padding(op: Any, dim: int) -> tuple[int, int, int]:
    """Padding of a dimension before and after it, and between its elements."""
    kinds = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, interior = (op.attributes[kind][dim] for kind in kinds)
    return low, high, interior


def joined(op: Any, operands: Types, results: Types, dim: int) -> tuple[Reach | None, ...] | None:
    """One operand after the other."""
    if dim != op.attributes["dimension"].value or len(operands) == 1:
        return None
    start, reads = 0, []
    for type_ in operands:
        reads.append(Reach(results[0].shape[dim], -start))
        start += type_.shape[dim]
    return tuple(reads)


def reversed_(
    op: Any, operands: Types, results: Types, dim: int
) -> tuple[Reach | None, ...] | None:
    """The last element first."""
    if dim not in list(op.attributes["dimensions"]):
        return None
    return (Reach(results[0].shape[dim], mirrored=True),)


def moving(reads: Reads) -> Callable[[Any, Rule, Types, Types], Rule]:
    """The rule of operations of one kind, from Shardy's and what devices read of a dimension."""

    def narrow(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
        draft, short = Draft(rule), op.name.rpartition(".")[2]
        for dim, made in enumerate(results[0].shape):
            reaches = reads(op, operands, results, dim)
            if reaches is None:
                continue
            sizes = [type_.shape[dim] for type_, _ in zip(operands, reaches, strict=False)]
            shared = math.gcd(made, *sizes, *(reach.size for reach in reaches if reach))
            if None in reaches or shared < 2 or 0 in (made, *sizes):
                reason = f"{short} moves elements along this dimension"
                for number, size in enumerate(sizes):
                    draft.operands[number][dim] = draft.blocked(size, reason)
                draft.results[0][dim] = draft.blocked(made, reason)
                continue
            factor = draft.replace(rule.operands[0][dim], shared)
            for number, (size, reach) in enumerate(zip(sizes, reaches, strict=True)):
                draft.operands[number][dim] = draft.made_of(factor, size)
                draft.halos[number][dim] = reach
            draft.results[0][dim] = draft.made_of(factor, made)
        return draft.rule()

    return narrow
