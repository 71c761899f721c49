"""Look-ups: rows of a table at indices.

A device can do its part of a look-up alone only if that is one index wide: then indices outside of
its shard are masked, and the look-up is summed over the devices. Wider windows could cross from one
shard into the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.rule import Rule
from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.entry import Entry, Types
from partita.stablehlo.operations.indices import WINDOWS, shift_indices
from partita.stablehlo.operations.letters import Letters, SizesOf, flat, ones
from partita.stablehlo.operations.numbers import Numbers
from partita.stablehlo.rules.draft import blocked, leading


def _narrow(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    numbers, sizes = Numbers.of(op), list(op.attributes["slice_sizes"])
    wide = [
        dim
        for dim in numbers.indexed
        if dim not in numbers.dropped and 1 < sizes[dim] < operands[0].shape[dim]
    ]
    return blocked(rule, leading(rule, 0, wide), WINDOWS.format("gather"))


def _letters(op: Any) -> Letters:
    return Numbers.of(op).letters(*op.operands, *op.results)


def _renumber(op: Any, sizes_of: SizesOf) -> None:
    numbers = Numbers.of(op)
    numbers.write(op, sizes_of, *op.operands, *op.results)
    sizes = [
        list(ones(each, 1) if dim in numbers.batch else each) if len(each) > 1 else [known]
        for dim, (known, each) in enumerate(
            zip(op.attributes["slice_sizes"], sizes_of(op.operands[0]), strict=True)
        )
    ]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(flat(sizes))


def _local(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Looks up the indices in each device's shard, along a sharded and indexed dimension."""
    numbers, layout = Numbers.of(op), run.needs[0]
    sizes = list(op.attributes["slice_sizes"])
    split = {n: dim for n, dim in enumerate(numbers.indexed) if layout[dim] and sizes[dim] == 1}
    for dim, axes in enumerate(layout):
        if axes and sizes[dim] > 1:
            sizes[dim] = run.inputs[0].shape[dim]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(sizes)
    if not split:
        return build.place(op, run.outputs)
    # Every device looks up what lies in its shard; the others contribute zeros to the sum.
    clamp_to = {dim: run.global_inputs[0].shape[dim] for dim in split.values()}
    op.operands[1], inside = shift_indices(
        op.operands[1], numbers.vector, split, run, build, clamp_to
    )
    (result,) = build.place(op, run.outputs)
    shape = list(ir.RankedTensorType(result.type).shape)
    batch = ir.DenseI64ArrayAttr.get(numbers.batch_dims(len(shape)))
    mask_type = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(1))
    mask = hlo.broadcast_in_dim(mask_type, inside, batch)
    return [hlo.select(mask, result, build.fill(result.type, 0))]


ENTRIES = {
    "stablehlo.gather": Entry(narrow=_narrow, letters=_letters, renumber=_renumber, local=_local)
}
"""Entry of look-ups."""
