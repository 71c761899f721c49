"""Device-local forms of look-ups and writes at indices.

Along a sharded dimension each device looks up the indices in its shard, and the others contribute
zeros to a sum. It writes the updates that fall into its shard. For windows that are one index wide,
it drops the indices of other shards; wider windows are written as in `partita.emit.windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.emit.builder import Builder, set_apart
from partita.emit.local_run import LocalRun
from partita.emit.windows import clamped, in_parts, part_of, signed, wide
from partita.program.combining import NEUTRAL
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.rules.scatters import batch_dims, numbers_of, window_dims


def dynamic_slice(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
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
    for dim, axes in enumerate(run.form.needs[0]):
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


def dynamic_update_slice(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Each device writes the part of the window that falls into its shard."""
    whole, window = (run.global_inputs[number].shape for number in (0, 1))
    layout, shard = run.form.needs[0], run.inputs[0].shape
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


def gather(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Looks up the indices in each device's shard, along a sharded and indexed dimension."""
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    layout, sizes = run.form.needs[0], list(op.attributes["slice_sizes"])
    split = {
        place: dim
        for place, dim in enumerate(numbers.start_index_map)
        if layout[dim] and sizes[dim] == 1
    }
    for dim, axes in enumerate(layout):
        if axes and sizes[dim] > 1:
            sizes[dim] = run.inputs[0].shape[dim]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(sizes)
    if not split:
        return build.place(op, run.outputs)
    # Every device looks up what lies in its shard; the others contribute zeros to the sum.
    clamp_to = {dim: run.global_inputs[0].shape[dim] for dim in split.values()}
    vector = numbers.index_vector_dim
    op.operands[1], inside = _shift_indices(op.operands[1], vector, split, run, build, clamp_to)
    (result,) = build.place(op, run.outputs)
    shape = list(ir.RankedTensorType(result.type).shape)
    batch = [d for d in range(len(shape)) if d not in set(numbers.offset_dims)]
    mask_type = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(1))
    mask = hlo.broadcast_in_dim(mask_type, inside, ir.DenseI64ArrayAttr.get(batch))
    return [hlo.select(mask, result, build.fill(result.type, 0))]


def scatter(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Indices outside of a device's shard are dropped; of wider windows it writes its part."""
    numbers, lying, count = numbers_of(op), window_dims(op), len(op.results)
    layout, whole = run.form.needs[0], run.global_inputs[0].shape
    narrow: dict[int, int] = {}
    wider: dict[int, int] = {}
    for place, dim in enumerate(numbers.scattered_dims_to_operand_dims):
        width = run.global_inputs[-1].shape[lying[dim]] if dim in lying else 1
        if layout[dim] and width < whole[dim]:
            (wider if width > 1 else narrow)[place] = dim
    if narrow:
        # Indices outside of this device's shard become out of bounds, which scatter drops.
        vector = numbers.index_vector_dim
        indices, inside = _shift_indices(op.operands[count], vector, narrow, run, build)
        outside = build.fill(indices.type, -1)
        mask = _along_vector(inside, indices, vector)
        op.operands[count] = hlo.select(mask, indices, outside)
    if wider:  # after that, for what is written as it was is read at the same indices
        _write_parts(op, run, wider, build)
    if narrow or wider:
        for promise in ("indices_are_sorted", "unique_indices"):
            op.attributes[promise] = ir.BoolAttr.get(False)
        if run.inputs[count].elements == len(numbers.scattered_dims_to_operand_dims):
            # Of a single index XLA makes a slice and an update. A slice out of bounds of a shard
            # it then takes together with the one that cut the shard, as if it were in bounds.
            op.operands[0] = set_apart(op.operands[0])
    how = run.operation.combine
    known = run.operation.zero_init and how == "add"
    if run.form.sums and how in NEUTRAL and not known:
        operand, nothing = op.operands[0], build.fill(op.operands[0].type, NEUTRAL[how])
        op.operands[0] = build.only_first(operand, nothing, run.form.sums)
    return build.place(op, run.outputs)


def _write_parts(op: Any, run: LocalRun, wider: dict[int, int], build: Builder) -> None:
    """Writes the parts of windows that fall into a device's shard, and leaves the rest unchanged.

    `wider` maps a component of an index to its dimension of the operand.
    """
    numbers, lying, batch = numbers_of(op), window_dims(op), batch_dims(op)
    vector = numbers.index_vector_dim
    operand, indices, update = op.operands[0], signed(op.operands[1]), op.operands[2]
    parts = []
    for place, dim in wider.items():
        whole, shard = run.global_inputs[0].shape[dim], run.inputs[0].shape[dim]
        window = run.global_inputs[2].shape[lying[dim]]
        start, here = _component(indices, place, vector, build)
        offset = build.offset(run.form.needs[0][dim], shard)
        part = part_of(build, lying[dim], start, window, offset, shard, last=whole - window)
        parts.append(part)
        indices = hlo.select(here, _along_vector(part.start, indices, vector), indices)
    update, inside = in_parts(build, update, parts, batch)
    how = run.operation.combine
    if how in NEUTRAL:
        before = build.fill(update.type, NEUTRAL[how])
    else:
        before = _before(operand, indices, update, numbers, lying)
    for number, value in enumerate((indices, hlo.select(inside, update, before)), 1):
        op.operands[number] = value


def _before(operand: Any, indices: Any, update: Any, numbers: Any, lying: dict[int, int]) -> Any:
    """Returns the values of the operand that a scatter's updates overwrite."""
    shape = ir.RankedTensorType(update.type).shape
    rank = len(ir.RankedTensorType(operand.type).shape)
    sizes = [shape[lying[dim]] if dim in lying else 1 for dim in range(rank)]
    looked_up = hlo.GatherDimensionNumbers.get(
        offset_dims=list(numbers.update_window_dims),
        collapsed_slice_dims=list(numbers.inserted_window_dims),
        operand_batching_dims=list(numbers.input_batching_dims),
        start_indices_batching_dims=list(numbers.scatter_indices_batching_dims),
        start_index_map=list(numbers.scattered_dims_to_operand_dims),
        index_vector_dim=numbers.index_vector_dim,
    )
    return hlo.gather(operand, indices, looked_up, ir.DenseI64ArrayAttr.get(sizes))


def _shift_indices(
    indices: Any,
    vector: int,
    split: dict[int, int],
    run: LocalRun,
    build: Builder,
    clamp_to: dict[int, int] | None = None,
) -> tuple[Any, Any]:
    """Returns index vectors relative to this device's shard, and a mask of those inside it.

    Components along unsplit dimensions stay. With `clamp_to`, indices are first clamped to the
    global operand's size, as gather clamps those that are out of bounds.
    """
    indices = wide(indices)
    type_ = ir.RankedTensorType(indices.type)
    scalar = ir.RankedTensorType.get([], type_.element_type)
    inside: Any = None
    for place, dim in split.items():
        here = _is_component(indices, place, vector, build)
        if clamp_to is not None:
            low, high = build.fill(type_, 0), build.fill(type_, clamp_to[dim] - 1)
            indices = hlo.select(here, hlo.clamp(low, indices, high), indices)
        shard = run.inputs[0].shape[dim]
        offset = hlo.convert(scalar, build.offset(run.form.needs[0][dim], shard))
        shifted = hlo.subtract(indices, build.propagation(offset, indices))
        fits = hlo.and_(
            build.compare(shifted, build.fill(type_, 0), "GE"),
            build.compare(shifted, build.fill(type_, shard), "LT"),
        )
        fits = hlo.or_(fits, hlo.not_(here))
        inside = fits if inside is None else hlo.and_(inside, fits)
        indices = hlo.select(here, shifted, indices)
    if vector < len(type_.shape):
        inside = _all_along(inside, vector, build)
    return indices, inside


def _is_component(indices: Any, place: int, vector: int, build: Builder) -> Any:
    """A mask of one component of index vectors."""
    type_ = ir.RankedTensorType(indices.type)
    if vector == len(type_.shape):
        return build.compare(build.fill(type_, 0), build.fill(type_, place), "EQ")
    i64 = ir.IntegerType.get_signless(64)
    return build.compare(
        hlo.iota(type_, ir.IntegerAttr.get(i64, vector)), build.fill(type_, place), "EQ"
    )


def _component(indices: Any, place: int, vector: int, build: Builder) -> tuple[Any, Any]:
    """One component of index vectors, and a mask of it in them."""
    here = _is_component(indices, place, vector, build)
    type_ = ir.RankedTensorType(indices.type)
    if vector == len(type_.shape):
        return indices, here
    starts, limits = [0] * len(type_.shape), list(type_.shape)
    starts[vector], limits[vector] = place, place + 1
    steps = [1] * len(starts)
    cut = hlo.slice(indices, *map(ir.DenseI64ArrayAttr.get, (starts, limits, steps)))
    shape = [size for dim, size in enumerate(type_.shape) if dim != vector]
    return hlo.reshape(ir.RankedTensorType.get(shape, type_.element_type), cut), here


def _all_along(mask: Any, dim: int, build: Builder) -> Any:
    """Logical and of a mask along one dimension."""
    shape = [s for d, s in enumerate(ir.RankedTensorType(mask.type).shape) if d != dim]
    boolean = ir.IntegerType.get_signless(1)
    init = build.fill(ir.RankedTensorType.get([], boolean), 1)
    reduce = hlo.ReduceOp(
        [ir.RankedTensorType.get(shape, boolean)], [mask], [init], ir.DenseI64ArrayAttr.get([dim])
    )
    block = reduce.regions[0].blocks.append(init.type, init.type)
    with ir.InsertionPoint(block):
        hlo.return_([hlo.and_(*block.arguments)])
    return reduce.results[0]


def _along_vector(value: Any, indices: Any, vector: int) -> Any:
    """Broadcasts a value per index vector to each of its components."""
    shape = list(ir.RankedTensorType(indices.type).shape)
    dims = [d for d in range(len(shape)) if d != vector]
    result = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    return hlo.broadcast_in_dim(result, value, ir.DenseI64ArrayAttr.get(dims))
