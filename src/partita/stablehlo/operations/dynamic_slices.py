"""Slices that are read or written where other operands say.

A device reads its part alone only if that is one index wide: those without the index contribute
zeros to a sum. So a loop reads one layer of a stack. What is written may be wider: each device
writes what falls into its shard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partita.program.rule import Rule
from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.entry import Entry, Types
from partita.stablehlo.operations.indices import WINDOWS, clamped, signed, wide
from partita.stablehlo.operations.letters import (
    SizesOf,
    differing,
    per_dimension,
    resized,
    same_but,
    up_to,
)
from partita.stablehlo.operations.parts import in_parts, part_of
from partita.stablehlo.rules.draft import blocked, leading, with_kind


def _narrow_read(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """One index of a dimension: the device that holds it contributes it, the others zeros."""
    sizes = list(op.attributes["slice_sizes"])
    found = [dim for dim, size in enumerate(operands[0].shape) if sizes[dim] == 1 < size]
    rule = with_kind(rule, leading(rule, 0, found), "reduction")
    result = tuple(() if dim in found else made for dim, made in enumerate(rule.results[0]))
    return dataclasses.replace(rule, results=(result,))


def _narrow_write(op: Any, rule: Rule, operands: Types, results: Types) -> Rule:
    """Shards a dimension that is written in part: each device writes what falls into its shard.

    The update itself requires replication along such a dimension, whatever its size.
    """
    whole, update = operands[0].shape, operands[1].shape
    moving = [dim for dim, (a, b) in enumerate(zip(whole, update, strict=True)) if a != b]
    reason = WINDOWS.format("dynamic_update_slice")
    rule = blocked(rule, leading(rule, 1, moving), reason)
    return with_kind(rule, leading(rule, 0, moving), "parallel")


def _written(op: Any) -> list[int]:
    return differing(op.operands[0], op.operands[1])


def _renumber(op: Any, sizes_of: SizesOf) -> Any:
    """An index for each dimension; where all of it is read or written, any is clamped to 0."""
    sizes = sizes_of(op.operands[0])
    if "slice_sizes" in op.attributes:
        per_dimension(op, "slice_sizes", sizes, up_to)
    first = len(op.operands) - len(sizes)
    values = list(op.operands)
    indices = [value for value, each in zip(values[first:], sizes, strict=True) for _ in each]
    with ir.InsertionPoint(op), op.location:
        return ir.Operation.create(
            op.name,
            results=[op.results[0].type],
            operands=[*values[:first], *indices],
            attributes=dict(op.attributes.items()),
        )


def _local_read(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Reads a slice. If it is one index of a sharded dimension, other devices than its owner return
    zeros."""
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(list(run.outputs[0].shape))
    inside = _enter_shard(op, run, build)
    _stay_inside(op, run, build)
    results = build.place(op, run.outputs)
    if inside is None:
        return results
    (result,) = results
    return [hlo.select(build.propagation(inside, result), result, build.fill(result.type, 0))]


def _enter_shard(op: Any, run: LocalRun, build: Builder) -> Any:
    """Makes the start of a slice relative to this device's shard.

    Returns whether it is in the shard; None if no sharded dimension is read at a single index.
    Starts are clamped to the global size first, as the operation does, and then to the shard, as in
    `_stay_inside`.
    """
    inside: Any = None
    whole, read = run.global_inputs[0].shape, run.global_outputs[0].shape
    for dim, axes in enumerate(run.needs[0]):
        if not axes or read[dim] != 1:
            continue
        shard = run.inputs[0].shape[dim]
        start = clamped(wide(op.operands[1 + dim]), whole[dim] - 1, build)
        local = hlo.subtract(start, hlo.convert(start.type, build.offset(axes, shard)))
        here = clamped(local, shard - 1, build)
        fits = build.compare(here, local, "EQ")
        inside = fits if inside is None else hlo.and_(inside, fits)
        for number in range(1, len(op.operands)):
            op.operands[number] = wide(op.operands[number])
        op.operands[1 + dim] = here
    return inside


def _stay_inside(op: Any, run: LocalRun, build: Builder) -> None:
    """Clamps the starts of windows of several indices so that they fit, as the operation specifies.

    XLA merges two consecutive slices by adding their starts, and forgets that the first one is
    clamped. The second one may be the shard that a device keeps.
    """
    sizes = zip(run.inputs[0].shape, run.outputs[0].shape, strict=True)
    last = {
        dim: operand - shard for dim, (operand, shard) in enumerate(sizes) if 1 < shard < operand
    }
    if last:
        for number in range(1, len(op.operands)):
            op.operands[number] = wide(op.operands[number])
    for dim, most in last.items():
        op.operands[1 + dim] = clamped(op.operands[1 + dim], most, build)


def _local_write(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Each device writes the part of the window that falls into its shard."""
    whole, window = (run.global_inputs[number].shape for number in (0, 1))
    layout, shard = run.needs[0], run.inputs[0].shape
    split = [d for d, axes in enumerate(layout) if axes and window[d] < whole[d]]
    if not split:
        return build.place(op, run.outputs)
    operand, update, *starts = op.operands
    # Windows that do not fit begin where they do.
    for dim, (size, width) in enumerate(zip(whole, window, strict=True)):
        starts[dim] = signed(clamped(wide(starts[dim]), size - width, build))
    parts = []
    for dim in split:
        offset = build.offset(layout[dim], shard[dim])
        part = part_of(build, dim, starts[dim], window[dim], offset, shard[dim], last=None)
        parts.append(part)
        starts[dim] = part.start
    update, inside = in_parts(build, update, parts, ())
    shape = list(ir.RankedTensorType(update.type).shape)
    before = hlo.dynamic_slice(operand, starts, ir.DenseI64ArrayAttr.get(shape))
    for number, value in enumerate((hlo.select(inside, update, before), *starts), 1):
        op.operands[number] = value
    return build.place(op, run.outputs)


ENTRIES = {
    "stablehlo.dynamic_slice": Entry(
        narrow=_narrow_read, letters=same_but(resized), renumber=_renumber, local=_local_read
    ),
    "stablehlo.dynamic_update_slice": Entry(
        narrow=_narrow_write, letters=same_but(_written), renumber=_renumber, local=_local_write
    ),
}
"""Entries of slices at indices, by kind."""
