"""Device-local forms of operations: what has to change besides the types.

Most operations run on local shapes unchanged. Those that do not have an entry in `LOCALIZERS`; a
new one is one function here. Each gets the MLIR operation, already with local operands, and what
is known of the run; it changes attributes and operands, puts the operation in its place with
`build.place`, and returns the local results. What it builds before and after goes there too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.emit.builder import COMBINE, Builder, set_apart
from partita.emit.ragged import ragged_dot
from partita.program.combining import NEUTRAL
from partita.program.ir import Operation, TensorType
from partita.program.op_traits import CONSTRAINT, FULL_TO_SHARD, MANUAL, SHARD_TO_FULL
from partita.stablehlo import mlir
from partita.stablehlo.bodies import starts_of_parts
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.rules.windows import paddings, slides
from partita.tiling import Layout, OpForm


@dataclasses.dataclass(frozen=True)
class LocalRun:
    """One operation as a device runs it."""

    operation: Operation
    form: OpForm
    sums: frozenset[int]
    """Axes over which the result is partial."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    global_inputs: tuple[TensorType, ...]
    """Types of the operands before they were split."""
    global_outputs: tuple[TensorType, ...]


Localizer = Callable[[Any, LocalRun, Builder], Sequence[Any]]


def localize(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Turns an MLIR operation with local operands into its device-local form; its results."""
    special = LOCALIZERS.get(run.operation.kind)
    if special is not None:
        return special(op, run, build)
    return build.place(op, run.outputs)


def _operand(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Nothing: its operand has been moved to where it should be."""
    return [op.operands[0]]


def _manual(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """What is inside, as it is."""
    block = op.regions[0].blocks[0]
    *inside, returned = [view.operation for view in block.operations]
    for argument, value in zip(block.arguments, op.operands, strict=True):
        argument.replace_all_uses_with(value)
    results = list(returned.operands)
    for each in inside:
        build.body.append(each)
        each.walk(lambda inner: _renumber(inner, build))
    return results


def _collective(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """What a computation that is manual over some axes has devices exchange, as it is."""
    _renumber(op, build)
    return build.place(op, run.outputs)


def _renumber(op: Any, build: Builder) -> Any:
    """Gives a collective a channel of its own."""
    if "channel_handle" in op.attributes:
        op.attributes["channel_handle"] = build.channel()
    return ir.WalkResult.ADVANCE


def _constant(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """A shard is cut out of it, or filled if all elements are equal."""
    layout = run.form.makes[0]
    if not any(layout):
        return build.place(op, run.outputs)
    element = mlir.splat(op)
    if element is not None:
        return [hlo.constant(ir.DenseElementsAttr.get_splat(build.type(run.outputs[0]), element))]
    build.body.append(op)
    return [
        build.slice(op.results[0], run.outputs[0].shape, _starts(layout, run.outputs[0], build))
    ]


def _starts(layout: Layout, local: TensorType, build: Builder) -> dict[int, Any]:
    return {dim: build.offset(axes, local.shape[dim]) for dim, axes in enumerate(layout) if axes}


def _iota(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """It starts from the number of the shard's first index."""
    (result,) = build.place(op, run.outputs)
    dim = op.attributes["iota_dimension"].value
    axes = run.form.makes[0][dim]
    if not axes:
        return [result]
    offset = build.offset(axes, run.outputs[0].shape[dim])
    element = ir.RankedTensorType(result.type).element_type
    offset = hlo.convert(ir.RankedTensorType.get([], element), offset)
    return [hlo.add(result, build.propagation(offset, result))]


def _reduce(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """The initial value enters the results of all devices together, once if they are added.

    It is combined with what a device makes of its shard, not left to the reduction: of a shard of
    a single element, XLA makes that element.
    """
    known = run.operation.zero_init and run.operation.combine == "add"
    if not run.sums or known:
        return build.place(op, run.outputs)
    combine, init = COMBINE[run.operation.combine], op.operands[1]
    neutral = NEUTRAL.get(run.operation.combine)
    if neutral is not None:
        op.operands[1] = build.fill(init.type, neutral)
        init = build.only_first(init, op.operands[1], run.sums)
    (result,) = build.place(op, run.outputs)
    return [combine(result, build.propagation(init, result))]


def _slice(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Dimensions that are not cut are as long as the shard."""
    limits = list(op.attributes["limit_indices"])
    for dim, axes in enumerate(run.form.makes[0]):
        if axes:
            limits[dim] = run.outputs[0].shape[dim]
    op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)
    return build.place(op, run.outputs)


def _dynamic_slice(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Where one index of a split dimension is read, its device has it and the others zeros."""
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(list(run.outputs[0].shape))
    inside = _enter_shard(op, 1, run, build)
    _stay_inside(op, run, build)
    results = build.place(op, run.outputs)
    if inside is None:
        return results
    (result,) = results
    return [hlo.select(build.propagation(inside, result), result, build.fill(result.type, 0))]


def _stay_inside(op: Any, run: LocalRun, build: Builder) -> None:
    """Has windows of several indices start where they fit, as the operation says they do.

    XLA makes one of two slices that follow each other, adding up where they start, and forgets
    that the first one stays inside: the second one may be the shard that a device keeps.
    """
    sizes = zip(run.inputs[0].shape, run.outputs[0].shape, strict=True)
    last = {
        dim: operand - shard for dim, (operand, shard) in enumerate(sizes) if 1 < shard < operand
    }
    if last:
        for number in range(1, len(op.operands)):
            op.operands[number] = _wide(op.operands[number])
    for dim, most in last.items():
        op.operands[1 + dim] = _clamped(op.operands[1 + dim], most, build)


def _dynamic_update_slice(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Where one index of a split dimension is written, the other devices write what was there."""
    inside = _enter_shard(op, 2, run, build)
    if inside is not None:
        operand, update, *starts = op.operands
        shape = list(ir.RankedTensorType(update.type).shape)
        before = hlo.dynamic_slice(operand, starts, ir.DenseI64ArrayAttr.get(shape))
        op.operands[1] = hlo.select(build.propagation(inside, update), update, before)
    return build.place(op, run.outputs)


def _enter_shard(op: Any, first: int, run: LocalRun, build: Builder) -> Any:
    """Makes the start of a window (operands from `first` on) relative to this device's shard.

    Returns whether the window lies in the shard; None if no dimension along which it moves is
    split. Starts are clamped first, as the operation does on all of it, and then to the shard, as
    in `_stay_inside`.
    """
    inside: Any = None
    rule, layout = run.operation.rule, run.form.needs[0]
    for dim, axes in enumerate(layout):
        factor = rule.leading(rule.operands[0][dim])
        if not axes or factor is None or not _moves_along(run, dim, factor):
            continue
        start = _clamped(_wide(op.operands[first + dim]), rule.factors[factor].size - 1, build)
        offset = hlo.convert(start.type, build.offset(axes, run.inputs[0].shape[dim]))
        local = hlo.subtract(start, offset)
        here = _clamped(local, run.inputs[0].shape[dim] - 1, build)
        fits = build.compare(here, local, "EQ")
        inside = fits if inside is None else hlo.and_(inside, fits)
        for number in range(first, len(op.operands)):
            op.operands[number] = _wide(op.operands[number])
        op.operands[first + dim] = here
    return inside


def _clamped(start: Any, last: int, build: Builder) -> Any:
    """An index, moved to between 0 and `last`."""
    return hlo.clamp(build.fill(start.type, 0), start, build.fill(start.type, last))


def _moves_along(run: LocalRun, dim: int, factor: int) -> bool:
    """Whether a window is one index wide along a dimension, and the operand is wider."""
    rule = run.operation.rule
    if run.operation.traits.reads_window:
        return rule.factors[factor].kind == "reduction"
    return factor not in rule.operands[1][dim]


def _convolution(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Groups are split together with the features that they consist of; halos stand for padding."""
    numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = run.form.needs[0], run.form.needs[1]
    split = {
        "feature_group_count": image[numbers.input_feature_dimension],
        "batch_group_count": image[numbers.input_batch_dimension],
    }
    kernel_split = kernel[numbers.kernel_output_feature_dimension]
    for name, axes in split.items():
        count = op.attributes[name].value
        if count > 1 and axes and axes == kernel_split:
            i64 = ir.IntegerType.get_signless(64)
            op.attributes[name] = ir.IntegerAttr.get(i64, count // build.mesh.size(axes))
    _pad_shards(op, run, numbers.input_spatial_dimensions)
    return build.place(op, run.outputs)


def _pad_shards(op: Any, run: LocalRun, dims: Sequence[int]) -> None:
    """Sets the padding along split dimensions: what of it the halo does not already bring."""
    layout, rank = run.form.needs[0], len(dims)
    if not any(layout[dim] for dim in dims):
        return
    found = slides(op, run.global_inputs, run.global_outputs)
    padding = paddings(op, rank)
    for place, (dim, slide) in enumerate(zip(dims, found, strict=True)):
        if layout[dim]:
            padding[2 * place : 2 * place + 2] = slide.padding
    pairs: Any = np.array(padding, np.int64).reshape(rank, 2)
    op.attributes["padding"] = ir.DenseElementsAttr.get(pairs)


def _reduce_window(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Pools shards with their halos; beyond the ends stands what changes nothing."""
    layout, halo = run.form.needs[0], run.form.halos[0]
    for number, nothing in enumerate(starts_of_parts(op) if halo else ()):
        for dim, reach in enumerate(halo):
            if any(reach):
                size = run.inputs[number].shape[dim] - sum(reach)
                op.operands[number] = build.fill_ends(
                    op.operands[number], nothing, dim, reach, size, layout[dim]
                )
    _pad_shards(op, run, range(len(layout)))
    return build.place(op, run.outputs)


def _gather(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Along a split dimension that is indexed, each device looks up what lies in its shard."""
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    _local_slice_sizes(op, run)
    layout, local = run.form.needs[0], run.inputs[0]
    split = {
        place: dim
        for place, dim in enumerate(numbers.start_index_map)
        if dim in set(numbers.collapsed_slice_dims) and layout[dim]
    }
    if not split:
        return build.place(op, run.outputs)
    # Every device looks up what lies in its shard; the others contribute zeros to the sum.
    vector = numbers.index_vector_dim
    operand = run.operation.rule.operands[0]
    sizes = {
        dim: run.operation.rule.factors[run.operation.rule.leading(operand[dim]) or 0].size
        for dim in split.values()
    }
    indices, inside = _shift_indices(
        op.operands[1], vector, split, layout, local, build, clamp_to=sizes
    )
    op.operands[1] = indices
    (result,) = build.place(op, run.outputs)
    batch = [d for d in range(len(run.outputs[0].shape)) if d not in set(numbers.offset_dims)]
    shape = ir.RankedTensorType(result.type).shape
    mask_type = ir.RankedTensorType.get(list(shape), ir.IntegerType.get_signless(1))
    mask = hlo.broadcast_in_dim(mask_type, inside, ir.DenseI64ArrayAttr.get(batch))
    return [hlo.select(mask, result, build.fill(result.type, 0))]


def _local_slice_sizes(op: Any, run: LocalRun) -> None:
    sizes = list(op.attributes["slice_sizes"])
    for dim, axes in enumerate(run.form.needs[0]):
        if axes and sizes[dim] > 1:
            sizes[dim] = run.inputs[0].shape[dim]
    op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(sizes)


def _shift_indices(
    indices: Any,
    vector: int,
    split: dict[int, int],
    layout: Layout,
    local: TensorType,
    build: Builder,
    clamp_to: dict[int, int] | None = None,
) -> tuple[Any, Any]:
    """Index vectors relative to this device's shard, and a mask of those that fall into it.

    Components along unsplit dimensions stay. With `clamp_to`, indices are first clamped to the
    global operand's size, as gather does with those that are out of bounds.
    """
    indices = _wide(indices)
    type_ = ir.RankedTensorType(indices.type)
    shape, element = list(type_.shape), type_.element_type
    scalar = ir.RankedTensorType.get([], element)
    component = (
        hlo.iota(
            ir.RankedTensorType.get(shape, element),
            ir.IntegerAttr.get(ir.IntegerType.get_signless(64), vector),
        )
        if vector < len(shape)
        else build.fill(type_, 0)
    )
    inside: Any = None
    for place, dim in split.items():
        here = build.compare(component, build.fill(type_, place), "EQ")
        if clamp_to is not None:
            low, high = build.fill(type_, 0), build.fill(type_, clamp_to[dim] - 1)
            indices = hlo.select(here, hlo.clamp(low, indices, high), indices)
        offset = hlo.convert(scalar, build.offset(layout[dim], local.shape[dim]))
        shifted = hlo.subtract(indices, build.propagation(offset, indices))
        fits = hlo.and_(
            build.compare(shifted, build.fill(type_, 0), "GE"),
            build.compare(shifted, build.fill(type_, local.shape[dim]), "LT"),
        )
        fits = hlo.or_(fits, hlo.not_(here))
        inside = fits if inside is None else hlo.and_(inside, fits)
        indices = hlo.select(here, shifted, indices)
    if vector < len(shape):
        inside = build.total(inside, vector, "and")
    return indices, inside


def _wide(indices: Any) -> Any:
    """Indices in a type that holds every offset: 32 bits at least."""
    type_ = ir.RankedTensorType(indices.type)
    if ir.IntegerType(type_.element_type).width >= 32:
        return indices
    i32 = ir.IntegerType.get_signless(32)
    return hlo.convert(ir.RankedTensorType.get(list(type_.shape), i32), indices)


def _scatter(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Indices outside of a device's shard are dropped."""
    attribute = op.attributes["scatter_dimension_numbers"]
    numbers = hlo.ScatterDimensionNumbers(attribute)
    layout, local = run.form.needs[0], run.inputs[0]
    split = {
        place: dim
        for place, dim in enumerate(numbers.scattered_dims_to_operand_dims)
        if layout[dim]
    }
    if split:
        # Indices outside of this device's shard become out of bounds, which scatter drops.
        indices, inside = _shift_indices(
            op.operands[1], numbers.index_vector_dim, split, layout, local, build
        )
        outside = build.fill(indices.type, -1)
        op.operands[1] = hlo.select(
            _along_vector(inside, indices, numbers.index_vector_dim), indices, outside
        )
        for promise in ("indices_are_sorted", "unique_indices"):
            op.attributes[promise] = ir.BoolAttr.get(False)
        if run.inputs[1].elements == len(numbers.scattered_dims_to_operand_dims):
            # Of a single index XLA makes a slice and an update. A slice out of bounds of a shard
            # it then takes together with the one that cut the shard, as if it were in bounds.
            op.operands[0] = set_apart(op.operands[0])
    how = run.operation.combine
    known = run.operation.zero_init and how == "add"
    if run.form.sums and how in NEUTRAL and not known:
        operand, nothing = op.operands[0], build.fill(op.operands[0].type, NEUTRAL[how])
        op.operands[0] = build.only_first(operand, nothing, run.form.sums)
    return build.place(op, run.outputs)


def _along_vector(mask: Any, indices: Any, vector: int) -> Any:
    shape = list(ir.RankedTensorType(indices.type).shape)
    dims = [d for d in range(len(shape)) if d != vector]
    result = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(1))
    return hlo.broadcast_in_dim(result, mask, ir.DenseI64ArrayAttr.get(dims))


def _ragged_dot(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Devices have other group sizes."""
    return ragged_dot(op, run.form, run.outputs, build)


LOCALIZERS: dict[str, Localizer] = {
    CONSTRAINT: _operand,
    FULL_TO_SHARD: _operand,
    SHARD_TO_FULL: _operand,
    MANUAL: _manual,
    "stablehlo.all_gather": _collective,
    "stablehlo.all_reduce": _collective,
    "stablehlo.all_to_all": _collective,
    "stablehlo.collective_permute": _collective,
    "stablehlo.reduce_scatter": _collective,
    "chlo.constant": _constant,
    "chlo.ragged_dot": _ragged_dot,
    "stablehlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
