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

from partita.program.op_traits import ROLL
from partita.program.rule import FactorKind, Reach, Rule
from partita.stablehlo import rolls
from partita.stablehlo.builder import Builder
from partita.stablehlo.building import within
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.entry import Entry, Narrow, Types
from partita.stablehlo.operations.letters import (
    SizesOf,
    its_dimension,
    listed,
    numbered,
    ones,
    parts,
    per_dimension,
    resized,
    same_but,
    up_to,
)
from partita.stablehlo.rules.draft import Draft

Reads = Callable[[Any, Types, Types, int], tuple[Reach | None, ...] | None]
"""Function from an operation, types of operands and results, and a dimension, to what it reads.

It returns what each device reads of the dimension, for every operand that has dimensions; None
where the dimension is not moved.
"""


def _sliced(op: Any, operands: Types, results: Types, dim: int) -> tuple[Reach | None, ...] | None:
    """Every `stride`-th element from `start` on."""
    start, stride = op.attributes["start_indices"][dim], op.attributes["strides"][dim]
    made = results[0].shape[dim]
    if made == operands[0].shape[dim]:
        return None
    return (Reach(made * stride, start, 1 - stride),)


def _narrow_slice(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Shards a dimension sliced to one index, too: its device contributes it, the others zeros.

    A dimension sliced to no index needs no communication.
    """
    draft = Draft(_moving(_sliced)(op, rule, operands, results))
    for dim, (size, made) in enumerate(zip(operands[0].shape, results[0].shape, strict=True)):
        if made < min(2, size):
            kind: FactorKind = "reduction" if made else "parallel"
            draft.operands[0][dim] = (draft.replace(draft.operands[0][dim], size, kind),)
            draft.results[0][dim] = ()
    return draft.rule()


def _padded(op: Any, operands: Types, results: Types, dim: int) -> tuple[Reach | None, ...] | None:
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


def _joined(op: Any, operands: Types, results: Types, dim: int) -> tuple[Reach | None, ...] | None:
    """One operand after the other."""
    if dim != op.attributes["dimension"].value or len(operands) == 1:
        return None
    start, reads = 0, []
    for type_ in operands:
        reads.append(Reach(results[0].shape[dim], -start))
        start += type_.shape[dim]
    return tuple(reads)


def _reversed(
    op: Any, operands: Types, results: Types, dim: int
) -> tuple[Reach | None, ...] | None:
    """The last element first."""
    if dim not in list(op.attributes["dimensions"]):
        return None
    return (Reach(results[0].shape[dim], mirrored=True),)


def _moving(reads: Reads) -> Narrow:
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


# Dimensions that become several.


def _adjacent(op: Any) -> bool:
    """Returns whether adjacent elements stay adjacent in a slice."""
    return set(op.attributes["strides"]) == {1}


def _edged(op: Any) -> bool:
    """Returns whether adjacent elements stay adjacent, and are kept, when they are padded."""
    edges = (*op.attributes["edge_padding_low"], *op.attributes["edge_padding_high"])
    return not any(op.attributes["interior_padding"]) and min(edges) >= 0


def _widened(op: Any) -> list[int]:
    return [dim for dim in range(len(op.attributes["interior_padding"])) if any(padding(op, dim))]


def _renumber_slice(op: Any, sizes_of: SizesOf) -> None:
    sizes = sizes_of(op.operands[0])
    per_dimension(op, "start_indices", sizes, parts)
    per_dimension(op, "limit_indices", sizes, up_to)
    per_dimension(op, "strides", sizes, ones)


def _renumber_pad(op: Any, sizes_of: SizesOf) -> None:
    for key in ("edge_padding_low", "edge_padding_high", "interior_padding"):
        per_dimension(op, key, sizes_of(op.results[0]), parts)


# Device-local forms.


def _local_slice(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """A device cuts its shard out of a window; of one index, those without it have zeros."""
    names = ("start_indices", "limit_indices")
    starts, limits = (list(op.attributes[name]) for name in names)
    inside: Any = None
    for dim, axes in enumerate(run.needs[0]):
        if not axes:
            continue
        shard = run.inputs[0].shape[dim]
        if not run.outputs[0].shape[dim]:
            starts[dim] = limits[dim] = 0
        elif not run.makes[0][dim]:
            owner, starts[dim] = divmod(starts[dim], shard)
            limits[dim] = starts[dim] + 1
            here = build.compare(build.index(axes), build.scalar(owner), "EQ")
            inside = here if inside is None else hlo.and_(inside, here)
        else:
            starts[dim], limits[dim] = 0, shard
    for name, values in zip(names, (starts, limits), strict=True):
        op.attributes[name] = ir.DenseI64ArrayAttr.get(values)
    results = build.place(op, run.outputs)
    if inside is None:
        return results
    (result,) = results
    return [hlo.select(build.propagation(inside, result), result, build.fill(result.type, 0))]


def _local_pad(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """A device pads a window of elements, where there is padding beyond the ends already."""
    names = ("edge_padding_low", "edge_padding_high")
    lows, highs = (list(op.attributes[name]) for name in names)
    for dim, reach in run.reaches(0):
        size, apart = run.global_inputs[0].shape[dim], op.attributes["interior_padding"][dim] + 1
        op.operands[0] = build.fill_ends(
            op.operands[0], op.operands[1], dim, reach, size, run.needs[0][dim]
        )
        lows[dim] %= apart
        highs[dim] = apart - 1 - lows[dim]
    for name, values in zip(names, (lows, highs), strict=True):
        op.attributes[name] = ir.DenseI64ArrayAttr.get(values)
    return build.place(op, run.outputs)


def _roll(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Along a split dimension the window that a device has got is its shard of the result."""
    value = op.operands[0]
    return [value if run.reaches(0) else rolls.write(value, *rolls.place(op))]


def _concatenate(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Takes from each operand the part of the concatenation that is in the device's shard."""
    if not run.halos[0]:
        return build.place(op, run.outputs)
    total, *others = list(op.operands)
    for number, value in enumerate(others, 1):
        ((dim, reach),) = run.reaches(number)
        axes = run.needs[number][dim]
        shard = run.outputs[0].shape[dim]
        begin = hlo.subtract(build.scalar(-reach.start), build.offset(axes, shard))
        inside = within(value.type, dim, begin, build.scalar(shard))
        total = hlo.select(inside, value, total)
    return [total]


ENTRIES = {
    "stablehlo.concatenate": Entry(
        narrow=_moving(_joined),
        letters=same_but(its_dimension, lambda op: True),
        renumber=numbered("dimension"),
        local=_concatenate,
    ),
    "stablehlo.pad": Entry(
        narrow=_moving(_padded),
        letters=same_but(_widened, _edged),
        renumber=_renumber_pad,
        local=_local_pad,
    ),
    "stablehlo.reverse": Entry(
        narrow=_moving(_reversed),
        letters=same_but(lambda op: ()),
        renumber=listed("dimensions"),
    ),
    "stablehlo.slice": Entry(
        narrow=_narrow_slice,
        letters=same_but(resized, _adjacent),
        renumber=_renumber_slice,
        local=_local_slice,
    ),
    ROLL: Entry(local=_roll),
}
"""Entries of operations that move elements along a dimension, by kind."""
