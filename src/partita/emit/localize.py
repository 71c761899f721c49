"""Device-local forms of operations: changes that they need besides their types.

Most operations run on local shapes unchanged. The others have an entry in `LOCALIZERS`; a new one
is one function here. Each receives the MLIR operation, already with local operands, and the
`LocalRun`. It changes attributes and operands, puts the operation in its place with `build.place`,
and returns the local results. Operations that it builds before and after go there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.emit import indexed
from partita.emit.builder import COMBINE, Builder
from partita.emit.kernels import custom_call
from partita.emit.local_run import LocalRun, opened, renumber
from partita.emit.ragged import ragged_dot
from partita.program.collectives import COLLECTIVES
from partita.program.combining import NEUTRAL
from partita.program.ir import TensorType
from partita.program.op_traits import CONSTRAINT, FULL_TO_SHARD, MANUAL, ROLL, SHARD_TO_FULL
from partita.program.rule import Reach
from partita.stablehlo import mlir, rolls
from partita.stablehlo.bodies import starts_of_parts
from partita.stablehlo.building import within
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.rules.windows import paddings, slides
from partita.tiling import Layout

Localizer = Callable[[Any, LocalRun, Builder], Sequence[Any]]


def localize(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Turns an MLIR operation with local operands into its device-local form; its results."""
    special = LOCALIZERS.get(run.operation.kind)
    if special is not None:
        return special(op, run, build)
    return build.place(op, run.outputs)


def _operand(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Returns the operand unchanged: it has already been resharded."""
    return [op.operands[0]]


def _manual(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Inlines the body of a manual computation unchanged."""
    return opened(op.regions[0].blocks[0], op.operands, build)


def _collective(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Keeps the collective of a computation that is manual over some axes, renumbered."""
    renumber(op, build)
    return build.place(op, run.outputs)


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
    """Applies the initial value to the combined result of all devices, once if it is added.

    It is combined with a device's partial result rather than passed to the reduction: XLA reduces a
    shard of a single element to that element, without the initial value.
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
    """A device cuts its shard out of a window; of one index, those without it have zeros."""
    names = ("start_indices", "limit_indices")
    starts, limits = (list(op.attributes[name]) for name in names)
    inside: Any = None
    for dim, axes in enumerate(run.form.needs[0]):
        if not axes:
            continue
        shard = run.inputs[0].shape[dim]
        if not run.outputs[0].shape[dim]:
            starts[dim] = limits[dim] = 0
        elif not run.form.makes[0][dim]:
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


def _reaches(run: LocalRun, number: int) -> list[tuple[int, Reach]]:
    """The dimensions along which a device has got a window of an operand."""
    return [(dim, reach) for dim, reach in enumerate(run.form.halos[number]) if reach is not None]


def _pad(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """A device pads a window of elements, where there is padding beyond the ends already."""
    names = ("edge_padding_low", "edge_padding_high")
    lows, highs = (list(op.attributes[name]) for name in names)
    for dim, reach in _reaches(run, 0):
        size, apart = run.global_inputs[0].shape[dim], op.attributes["interior_padding"][dim] + 1
        op.operands[0] = build.fill_ends(
            op.operands[0], op.operands[1], dim, reach, size, run.form.needs[0][dim]
        )
        lows[dim] %= apart
        highs[dim] = apart - 1 - lows[dim]
    for name, values in zip(names, (lows, highs), strict=True):
        op.attributes[name] = ir.DenseI64ArrayAttr.get(values)
    return build.place(op, run.outputs)


def _roll(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Along a split dimension the window that a device has got is its shard of the result."""
    value = op.operands[0]
    return [value if _reaches(run, 0) else rolls.write(value, *rolls.place(op))]


def _concatenate(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Takes from each operand the part of the concatenation that is in the device's shard."""
    if not run.form.halos[0]:
        return build.place(op, run.outputs)
    total, *others = list(op.operands)
    for number, value in enumerate(others, 1):
        ((dim, reach),) = _reaches(run, number)
        axes = run.form.needs[number][dim]
        shard = run.outputs[0].shape[dim]
        begin = hlo.subtract(build.scalar(-reach.start), build.offset(axes, shard))
        inside = within(value.type, dim, begin, build.scalar(shard))
        total = hlo.select(inside, value, total)
    return [total]


def _convolution(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Splits groups together with their features; halos replace padding."""
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
            if reach is not None:
                size = run.global_inputs[number].shape[dim]
                op.operands[number] = build.fill_ends(
                    op.operands[number], nothing, dim, reach, size, layout[dim]
                )
    _pad_shards(op, run, range(len(layout)))
    return build.place(op, run.outputs)


LOCALIZERS: dict[str, Localizer] = {
    CONSTRAINT: _operand,
    FULL_TO_SHARD: _operand,
    SHARD_TO_FULL: _operand,
    MANUAL: _manual,
    **{f"stablehlo.{name}": _collective for name in COLLECTIVES},
    ROLL: _roll,
    "chlo.constant": _constant,
    "chlo.ragged_dot": ragged_dot,
    "stablehlo.custom_call": custom_call,
    "stablehlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": indexed.dynamic_slice,
    "stablehlo.dynamic_update_slice": indexed.dynamic_update_slice,
    "stablehlo.pad": _pad,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": indexed.gather,
    "stablehlo.scatter": indexed.scatter,
}
