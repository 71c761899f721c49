"""Windows that slide along a dimension: convolutions and pooling, on shards with a halo.

Result `o` reads the elements `o * stride - low + t * window_dilation`, `t` up to the window, of an
operand stretched by `dilation`. If as many results as elements fall to every device (stretched and
strided), each device computes its results from its own elements and a halo of its neighbours' that
is as wide as the window overhangs. Zeros beyond the ends are the padding of a convolution.

The gradient of a convolution's kernel is a convolution too, whose window is the whole image: there
elements and window are sharded alike, and the results are unreduced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from partita.program.ir import TensorType
from partita.program.op_traits import traits
from partita.program.rule import FactorKind, Reach, Rule
from partita.stablehlo.bodies import starts_of_parts, works_in_parts
from partita.stablehlo.builder import Builder
from partita.stablehlo.building import i64
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.entry import Entry
from partita.stablehlo.operations.letters import SizesOf, ones, per_dimension, same_but
from partita.stablehlo.rules.draft import Draft

Splits = Literal["result", "window", "nothing"]


@dataclasses.dataclass(frozen=True)
class Slide:
    """Sliding of a window along one dimension of an operand."""

    size: int
    """Elements of the operand."""
    window: int
    result: int
    stride: int = 1
    low: int = 0
    """Padding before the first element; negative where elements are skipped."""
    dilation: int = 1
    """Dilation of the operand."""
    window_dilation: int = 1

    @property
    def splits(self) -> Splits:
        """Name of the tensor that can be sharded together with the operand, or `nothing`."""
        stretched = self.size * self.dilation
        along_result = self.result * self.stride == stretched
        along_window = self.window * self.window_dilation == stretched
        if along_result and (self.result >= self.window or not along_window):
            return "result"
        return "window" if along_window else "nothing"

    @property
    def _reach(self) -> tuple[int, int]:
        """Elements that a window reads before and after a shard, in the dilated operand."""
        if self.splits == "result":
            beyond = (self.window - 1) * self.window_dilation - self.stride
        else:
            beyond = (self.result - 1) * self.stride - self.window_dilation
        return self.low, self.dilation + beyond - self.low

    @property
    def halo(self) -> tuple[int, int]:
        """Elements needed of the shard before and of the shard after."""
        before, after = self._reach
        return max(0, before // self.dilation), max(0, after // self.dilation)

    @property
    def padding(self) -> tuple[int, int]:
        """Padding of a shard to which its halo has been added."""
        reach = zip(self._reach, self.halo, strict=True)
        before, after = (reads - added * self.dilation for reads, added in reach)
        return before, after


def slides(op: Any, operands: Sequence[TensorType], results: Sequence[TensorType]) -> list[Slide]:
    """Returns how windows slide along each dimension; spatial ones only, for convolutions."""
    if traits(op.name).convolution:
        numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        image = [operands[0].shape[dim] for dim in numbers.input_spatial_dimensions]
        window = [operands[1].shape[dim] for dim in numbers.kernel_spatial_dimensions]
        made = [results[0].shape[dim] for dim in numbers.output_spatial_dimensions]
        names = ("lhs_dilation", "rhs_dilation")
    else:
        image, made = list(operands[0].shape), list(results[0].shape)
        window = _numbers(op, "window_dimensions", len(image))
        names = ("base_dilations", "window_dilations")
    rank = len(image)
    strides = _numbers(op, "window_strides", rank)
    dilations, window_dilations = (_numbers(op, name, rank) for name in names)
    lows = paddings(op, rank)[::2]
    fields = (image, window, made, strides, lows, dilations, window_dilations)
    return [Slide(*each) for each in zip(*fields, strict=True)]


def paddings(op: Any, rank: int) -> list[int]:
    """Low and high padding of every dimension in turn."""
    if "padding" not in op.attributes:
        return [0] * (2 * rank)
    attribute: Any = ir.DenseIntElementsAttr(op.attributes["padding"])
    return [int(number) for number in attribute]


def _numbers(op: Any, name: str, rank: int) -> list[int]:
    return list(op.attributes[name]) if name in op.attributes else [1] * rank


def _narrow(
    op: Any, rule: Rule, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Rule:
    """Shardy's rule, but with the dimensions along which windows slide done as said above."""
    found = slides(op, operands, results)
    if traits(op.name).convolution:
        numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        dims: Iterable[tuple[int, int | None, int]] = zip(
            numbers.input_spatial_dimensions,
            numbers.kernel_spatial_dimensions,
            numbers.output_spatial_dimensions,
            strict=True,
        )
    else:
        dims = ((dim, None, dim) for dim in range(len(found)))
    draft = _Draft(rule, op.name.rpartition(".")[2])
    fills = traits(op.name).convolution or works_in_parts(op)
    for slide, (image, kernel, made) in zip(found, dims, strict=True):
        if not fills and any(slide.halo):
            draft.apart(slide, image, kernel, made)  # it is not known what changes nothing
        elif kernel is not None or slide != Slide(slide.size, 1, slide.size):
            draft.slide(slide, image, kernel, made)
    return draft.rule()


def _narrow_scatter(
    op: Any, rule: Rule, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Rule:
    """Rule of max pooling's gradient: local where windows are adjacent and cover everything."""
    draft = _Draft(rule, op.name.rpartition(".")[2])
    rank = len(operands[0].shape)
    strides = _numbers(op, "window_strides", rank)
    for dim, window in enumerate(_numbers(op, "window_dimensions", rank)):
        size, made = operands[0].shape[dim], operands[1].shape[dim]
        if window != 1 or size != made:
            side_by_side = window == strides[dim] and size == made * window
            draft.scatter(dim, size, made, side_by_side and not any(paddings(op, rank)))
    return draft.rule()


class _Draft(Draft):
    """A rule whose windows are changed dimension by dimension."""

    def __init__(self, rule: Rule, short: str) -> None:
        super().__init__(rule)
        self.reason = f"{short} reads windows along this dimension"
        self.images = len(rule.results)

    def slide(self, slide: Slide, image: int, kernel: int | None, made: int) -> None:
        """Maps the dimensions along which a window slides."""
        splits, least = slide.splits, max(slide.halo)
        other = {"result": slide.result, "window": slide.window, "nothing": 1}[splits]
        shared = math.gcd(slide.size, other)
        least = max(1, -(-least * shared // slide.size))
        if splits == "nothing" or shared < 2 * least or (splits == "window" and kernel is None):
            # No shard is wide enough, or results do not line up with elements.
            self.apart(slide, image, kernel, made)
            return
        kind: FactorKind = "reduction" if splits == "window" else "parallel"
        factor = self.factor(shared, kind, least=least)
        for number in range(self.images):
            self.operands[number][image] = self.made_of(factor, slide.size)
            if any(slide.halo):
                self.halos[number][image] = Reach.halo(slide.size, *slide.halo)
        if splits == "result":
            for tensor in self.results:
                tensor[made] = self.made_of(factor, slide.result)
            if kernel is not None:
                self.operands[1][kernel] = self.blocked(slide.window, self.reason)
        elif kernel is not None:
            self.operands[1][kernel] = self.made_of(factor, slide.window)
            self.results[0][made] = self.blocked(slide.result, self.reason)

    def scatter(self, dim: int, size: int, windows: int, local: bool) -> None:
        """Maps a dimension of which every window gets one element."""
        all_of_it, each = self.blocked(size, self.reason), self.blocked(windows, self.reason)
        if local:
            factor = self.factor(windows)
            all_of_it, each = self.made_of(factor, size), (factor,)
        self.operands[0][dim] = self.results[0][dim] = all_of_it
        self.operands[1][dim] = each

    def apart(self, slide: Slide, image: int, kernel: int | None, made: int) -> None:
        """Every dimension by itself; it requires replication."""
        for number in range(self.images):
            self.operands[number][image] = self.blocked(slide.size, self.reason)
        for tensor in self.results:
            tensor[made] = self.blocked(slide.result, self.reason)
        if kernel is not None:
            self.operands[1][kernel] = self.blocked(slide.window, self.reason)


def _windowed(op: Any) -> list[int]:
    keys = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    widths = zip(*(list(op.attributes[key]) for key in keys if key in op.attributes), strict=True)
    return [dim for dim, each in enumerate(widths) if set(each) != {1}]


def _renumber_window(op: Any, sizes_of: SizesOf) -> None:
    sizes = sizes_of(op.operands[0])
    for key in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if key in op.attributes:
            per_dimension(op, key, sizes, ones)
    if "padding" in op.attributes:
        known = np.array(op.attributes["padding"], np.int64).reshape(-1, 2)
        padding: Any = np.repeat(known, [len(each) for each in sizes], axis=0)
        op.attributes["padding"] = ir.DenseIntElementsAttr.get(padding)


def _convolution(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Splits groups together with their features; halos replace padding."""
    numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = run.needs[0], run.needs[1]
    split = {
        "feature_group_count": image[numbers.input_feature_dimension],
        "batch_group_count": image[numbers.input_batch_dimension],
    }
    kernel_split = kernel[numbers.kernel_output_feature_dimension]
    for name, axes in split.items():
        count = op.attributes[name].value
        if count > 1 and axes and axes == kernel_split:
            op.attributes[name] = i64(count // build.mesh.size(axes))
    _pad_shards(op, run, numbers.input_spatial_dimensions)
    return build.place(op, run.outputs)


def _reduce_window(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Pools shards with their halos; beyond the ends stands what changes nothing."""
    layout, halo = run.needs[0], run.halos[0]
    for number, nothing in enumerate(starts_of_parts(op) if halo else ()):
        for dim, reach in enumerate(halo):
            if reach is not None:
                size = run.global_inputs[number].shape[dim]
                op.operands[number] = build.fill_ends(
                    op.operands[number], nothing, dim, reach, size, layout[dim]
                )
    _pad_shards(op, run, range(len(layout)))
    return build.place(op, run.outputs)


def _pad_shards(op: Any, run: LocalRun, dims: Sequence[int]) -> None:
    """Sets the padding along split dimensions: what of it the halo does not already bring."""
    layout, rank = run.needs[0], len(dims)
    if not any(layout[dim] for dim in dims):
        return
    found = slides(op, run.global_inputs, run.global_outputs)
    padding = paddings(op, rank)
    for place, (dim, slide) in enumerate(zip(dims, found, strict=True)):
        if layout[dim]:
            padding[2 * place : 2 * place + 2] = slide.padding
    pairs: Any = np.array(padding, np.int64).reshape(rank, 2)
    op.attributes["padding"] = ir.DenseElementsAttr.get(pairs)


ENTRIES = {
    "stablehlo.convolution": Entry(narrow=_narrow, local=_convolution),
    "stablehlo.reduce_window": Entry(
        narrow=_narrow,
        letters=same_but(_windowed),
        renumber=_renumber_window,
        local=_reduce_window,
    ),
    "stablehlo.select_and_scatter": Entry(narrow=_narrow_scatter),
}
"""Entries of operations whose windows slide, by kind."""
