"""Scatters: windows of their updates, written at the places that their indices say.

What is written may be wider than one index, as long as no two windows overlap: each device writes
what falls into its shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.combining import NEUTRAL
from partita.program.rule import Rule
from partita.stablehlo.bodies import combiner
from partita.stablehlo.builder import Builder, set_apart
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.entry import Entry, Types
from partita.stablehlo.operations.indices import (
    WINDOWS,
    along_vector,
    component,
    shift_indices,
    signed,
)
from partita.stablehlo.operations.letters import FIXED, Letters, SizesOf, shape
from partita.stablehlo.operations.numbers import Numbers
from partita.stablehlo.operations.parts import in_parts, part_of
from partita.stablehlo.rules.draft import blocked, leading, with_kind


def _writes_apart(op: Any) -> bool:
    """Returns whether no two windows overlap, so that a device can write its part of the operand.

    Each window is then alone in its batch, and elements that must not change can be written with
    their old values.
    """
    numbers = Numbers.of(op)
    known = _replaces(op) or combiner(op) is not None
    shape = ir.RankedTensorType(op.operands[len(op.results)].type).shape
    own = {*numbers.batch_of_indices, numbers.vector}
    return known and all(size == 1 for dim, size in enumerate(shape) if dim not in own)


def _replaces(op: Any) -> bool:
    """Returns whether the updates replace what was there."""
    block = op.regions[0].blocks[0]
    *_, end = block.operations
    return len(op.results) == 1 and end.operation.operands[0] == block.arguments[1]


def _narrow(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Devices drop indices outside of their shards; of wider windows they write their own part."""
    numbers = Numbers.of(op)
    lying = numbers.window_dims(len(operands[0].shape))
    widths = {dim: operands[-1].shape[lying[dim]] for dim in lying}
    moving = [dim for dim, width in widths.items() if width < operands[0].shape[dim]]
    indexed = numbers.indexed
    local = [d for d in moving if d in indexed and (widths[d] == 1 or _writes_apart(op))]
    rule = with_kind(rule, leading(rule, 0, local), "parallel")
    others = [dim for dim in moving if dim not in local]
    return blocked(rule, leading(rule, 0, others), WINDOWS.format("scatter"))


def _letters(op: Any) -> Letters:
    if len(op.results) > 1:
        return tuple((FIXED,) * len(shape(v)) for v in (*op.operands, *op.results))
    table, rows, made = Numbers.of(op).letters(*op.operands)
    return table, rows, made, table


def _renumber(op: Any, sizes_of: SizesOf) -> None:
    Numbers.of(op).write(op, sizes_of, *op.operands)


def _local(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Indices outside of a device's shard are dropped; of wider windows it writes its part."""
    numbers, count = Numbers.of(op), len(op.results)
    layout, whole = run.needs[0], run.global_inputs[0].shape
    lying = numbers.window_dims(len(whole))
    narrow: dict[int, int] = {}
    wider: dict[int, int] = {}
    for place, dim in enumerate(numbers.indexed):
        width = run.global_inputs[-1].shape[lying[dim]] if dim in lying else 1
        if layout[dim] and width < whole[dim]:
            (wider if width > 1 else narrow)[place] = dim
    if narrow:
        # Indices outside of this device's shard become out of bounds, which scatter drops.
        indices, inside = shift_indices(op.operands[count], numbers.vector, narrow, run, build)
        outside = build.fill(indices.type, -1)
        mask = along_vector(inside, indices, numbers.vector)
        op.operands[count] = hlo.select(mask, indices, outside)
    if wider:  # after that, for what is written as it was is read at the same indices
        _write_parts(op, run, wider, build)
    if narrow or wider:
        for promise in ("indices_are_sorted", "unique_indices"):
            op.attributes[promise] = ir.BoolAttr.get(False)
        if run.inputs[count].elements == len(numbers.indexed):
            # Of a single index XLA makes a slice and an update. A slice out of bounds of a shard
            # it then takes together with the one that cut the shard, as if it were in bounds.
            op.operands[0] = set_apart(op.operands[0])
    how = run.operation.combine
    known = run.operation.zero_init and how == "add"
    if run.sums and how in NEUTRAL and not known:
        operand, nothing = op.operands[0], build.fill(op.operands[0].type, NEUTRAL[how])
        op.operands[0] = build.only_first(operand, nothing, run.sums)
    return build.place(op, run.outputs)


def _write_parts(op: Any, run: LocalRun, wider: dict[int, int], build: Builder) -> None:
    """Writes the parts of windows that fall into a device's shard, and leaves the rest unchanged.

    `wider` maps a component of an index to its dimension of the operand.
    """
    numbers = Numbers.of(op)
    vector, lying = numbers.vector, numbers.window_dims(len(run.global_inputs[0].shape))
    batch = numbers.batch_dims(len(run.global_inputs[2].shape))
    operand, indices, update = op.operands[0], signed(op.operands[1]), op.operands[2]
    parts = []
    for place, dim in wider.items():
        whole, shard = run.global_inputs[0].shape[dim], run.inputs[0].shape[dim]
        window = run.global_inputs[2].shape[lying[dim]]
        start, here = component(indices, place, vector, build)
        offset = build.offset(run.needs[0][dim], shard)
        part = part_of(build, lying[dim], start, window, offset, shard, last=whole - window)
        parts.append(part)
        indices = hlo.select(here, along_vector(part.start, indices, vector), indices)
    update, inside = in_parts(build, update, parts, batch)
    how = run.operation.combine
    if how in NEUTRAL:
        before = build.fill(update.type, NEUTRAL[how])
    else:
        before = _before(operand, indices, update, numbers)
    for number, value in enumerate((indices, hlo.select(inside, update, before)), 1):
        op.operands[number] = value


def _before(operand: Any, indices: Any, update: Any, numbers: Numbers) -> Any:
    """Returns the values of the operand that a scatter's updates overwrite."""
    shape = ir.RankedTensorType(update.type).shape
    rank = len(ir.RankedTensorType(operand.type).shape)
    lying = numbers.window_dims(rank)
    sizes = [shape[lying[dim]] if dim in lying else 1 for dim in range(rank)]
    return hlo.gather(operand, indices, numbers.of_gather(), ir.DenseI64ArrayAttr.get(sizes))


ENTRIES = {
    "stablehlo.scatter": Entry(narrow=_narrow, letters=_letters, renumber=_renumber, local=_local)
}
"""Entry of scatters."""
