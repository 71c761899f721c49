"""Compute time: a roofline per kernel, from the local sizes of what it computes, reads, writes.

What a kernel reaches of the peaks depends on what it does: matrix products and convolutions that
fill the matrix units or do not, values that stream through memory, rows that are gathered.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections import Counter
from collections.abc import Sequence

import numpy as np

from partita.analysis import ClassGraph, OpClass
from partita.cost.compute.copies import Copying
from partita.cost.devices.hardware import Hardware
from partita.cost.kernels.layers import Copy
from partita.cost.kernels.products import contracted, filling, of_single_row, points
from partita.cost.kernels.timing import Timing
from partita.mesh import Mesh
from partita.program.ir import Operation, Work
from partita.spmd.reshard import shards
from partita.tiling import OpForm, local_type

_ROWS_SCATTERED = 3
"""Times that a scatter moves each row: it reads the update, and reads and writes its target."""


class ComputeModel:
    """Time of operation classes, memoised by form."""

    def __init__(self, graph: ClassGraph, mesh: Mesh, hardware: Hardware, timing: Timing) -> None:
        self.graph = graph
        self.mesh = mesh
        efficiency = hardware.efficiency
        self.bandwidth = hardware.memory_bandwidth.value * efficiency.memory.value
        gathered = (efficiency.gather or efficiency.memory).value
        self._slower = efficiency.memory.value / gathered
        """Ratio of the time per byte of a gathered row to that of streamed memory."""
        self._peaks: dict[tuple[bool, str], float] = {}
        self._hardware = hardware
        self._launch = hardware.launch.value if hardware.launch else 0.0
        classes = np.array(graph.op_class, dtype=np.int64)
        self.times: list[float] = np.bincount(classes, timing.op_times, len(graph.ops)).tolist()
        """Number of runs per step of the members of each class, together."""
        self.accesses = [_accesses(op, timing) for op in graph.ops]
        values, hosted = graph.program.values, graph.program.hosted
        self._sizes = [
            [
                [0 if v in hosted else values[v].type.bytes for v in side]
                for side in (op.op.operands, op.op.results)
            ]
            for op in graph.ops
        ]
        self._takes_time = [
            op.op.work is not None
            or op.op.kernel is not None
            or op.op.traits.product
            or any(any(access.weights) or access.copied for access in accesses)
            for op, accesses in zip(graph.ops, self.accesses, strict=True)
        ]
        """True for each class that takes time in some form; others run inside other kernels."""
        self._seconds: dict[OpForm, float] = {}
        vector = hardware.vector_unit
        self._copying = Copying(vector, hardware.tile, self.bandwidth) if vector else None

    def seconds(self, op: OpClass, form: OpForm) -> float:
        """Returns the seconds of all members of an operation class under a form."""
        known = self._seconds.get(form)
        if known is None:
            one = self._one(op, form) if self._takes_time[op.index] else 0.0
            known = self._seconds[form] = self.times[op.index] * one
        return known

    def _one(self, op: OpClass, form: OpForm) -> float:
        """Returns the seconds of one member, on average."""
        sizes = self._bytes(op, form)
        moved = [
            (access.share, sum(map(operator.mul, access.weights, sizes), 0.0) / self.bandwidth)
            for access in self.accesses[op.index]
        ]
        inside = self._inside(op.op.work) if op.op.work else 0.0
        launched = self._launch * sum(a.share for a in self.accesses[op.index] if a.is_kernel)
        least = 0.0
        if op.op.kernel is not None and op.op.kernel.bytes:
            # What it says that it needs, of which each device has its share.
            share = 1 / math.prod(self.mesh.sizes[axis] for axis in form.axes)
            peak = self._peak(False, _dtype(self.graph, op))
            needed = max(op.op.kernel.bytes / self.bandwidth, op.op.kernel.flops / peak)
            return launched + share * needed
        if op.op.traits.product:
            launched = self._start(op.op)
            factors = _local_sizes(op.op, form, self.mesh)
            least = self._multiplying(op.op, self.flops(op, form), factors, _dtype(self.graph, op))
        moving = sum((share * max(seconds, least) for share, seconds in moved), 0.0)
        copied = sum(
            access.share * self._copied(copy, op.op, form)
            for access in self.accesses[op.index]
            for copy in (access.copied if self._copying else ())
        )
        return inside + launched + copied + moving

    def _copied(self, copy: Copy, op: Operation, form: OpForm) -> float:
        """Returns the seconds of a copy of an operand or result, beyond those counted already."""
        assert self._copying is not None
        value = (*op.operands, *op.results)[copy.place]
        layout = (*form.needs, *form.makes)[copy.place]
        type_ = local_type(self.graph.program.values[value].type, layout, self.mesh)
        return self._copying.seconds(copy, type_)

    def _start(self, op: Operation) -> float:
        """Returns the seconds that any product takes, however small."""
        stated = self._hardware.products
        return self._launch if stated is None or op.traits.convolution else stated.start.value

    def _multiplying(self, op: Operation, flops: float, sizes: Sequence[int], dtype: str) -> float:
        """Returns the seconds on the matrix units of a product with factors of these sizes."""
        peak, stated = self._peak(op.traits.convolution, dtype), self._hardware.products
        if stated is not None and not op.traits.convolution:
            return flops * (1 + stated.ramp.value / contracted(op, sizes)) / peak
        seconds = flops / (peak * filling(op, sizes, self._hardware.matrix_unit))
        vector = self._hardware.vector_unit
        if vector is None or op.traits.convolution:
            return seconds
        return max(seconds, of_single_row(op, sizes) / vector.product.value)

    def _peak(self, convolution: bool, dtype: str) -> float:
        """Returns the FLOP/s that large products reach on operands of this type."""
        if (convolution, dtype) not in self._peaks:
            self._peaks[convolution, dtype] = self._hardware.reached(dtype, convolution)
        return self._peaks[convolution, dtype]

    def _inside(self, work: Work) -> float:
        """Returns the seconds of a manual computation's local operations, elementwise ones free.

        Its own operands and results cost as for any other operation.
        """
        total = 0.0
        for op in work.operations:
            if not op.traits.fusible:
                read, written = (
                    [work.values[v].type.bytes for v in side] for side in (op.operands, op.results)
                )
                seconds = sum(map(sum, self._moved(op, read, written))) / self.bandwidth
                started = self._start(op) if op.traits.product else self._launch
                if op.traits.product:
                    flops = 2.0 * points(op, work.values)
                    sizes = [factor.size for factor in op.rule.factors]
                    dtype = work.values[op.operands[0]].type.dtype
                    seconds = max(seconds, self._multiplying(op, flops, sizes, dtype))
                total += op.times * (seconds + started)
        return total

    def flops(self, op: OpClass, form: OpForm) -> float:
        """Returns the FLOPs of one member on one device."""
        multiplications = points(op.op, self.graph.program.values)
        return 2.0 * multiplications / math.prod(self.mesh.sizes[axis] for axis in form.axes)

    def _bytes(self, op: OpClass, form: OpForm) -> list[float]:
        """Returns the bytes of every operand and result, as if all of them streamed."""
        read, written = (
            [size / shards(layout, self.mesh) for size, layout in zip(*side, strict=True)]
            for side in zip(self._sizes[op.index], (form.needs, form.makes), strict=True)
        )
        moved = self._moved(op.op, read, written)
        return [*moved[0], *moved[1]]

    def _moved(
        self, op: Operation, read: Sequence[float], written: Sequence[float]
    ) -> tuple[Sequence[float], Sequence[float]]:
        """Returns the bytes moved of every operand and result, given their sizes.

        Bytes of gathered rows count as more, because they are slower. An array is updated in place.
        """
        traits = op.traits
        if traits.slices or traits.looks_up:
            read = [min(read[0], written[0]), *read[1:]]
        elif traits.writes_window:
            read, written = [0, *read[1:]], [min(read[1], written[0])]
        if traits.looks_up:
            slower = self._slower
            return [slower * read[0], *read[1:]], [slower * size for size in written]
        if not traits.scatters:
            return read, written
        slower = _ROWS_SCATTERED * self._slower
        first = len(read) - len(written)  # the operands, one array of indices, then the updates
        return [*read[:first], *(slower * size for size in read[first:])], written


def _local_sizes(op: Operation, form: OpForm, mesh: Mesh) -> list[int]:
    """Returns the sizes of an operation's factors on one device."""
    rule = op.rule
    sizes = [factor.size for factor in rule.factors]
    for tensor, layout in zip(
        (*rule.operands, *rule.results), (*form.needs, *form.makes), strict=True
    ):
        for dimension, axes in zip(tensor, layout, strict=True):
            factor = rule.leading(dimension)
            if axes and factor is not None:
                sizes[factor] = math.ceil(rule.factors[factor].size / mesh.size(axes))
    return sizes


def _dtype(graph: ClassGraph, op: OpClass) -> str:
    return graph.program.values[op.op.operands[0]].type.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class _Access:
    """Memory accesses of some members of an operation class."""

    share: float
    """Share of the members."""
    weights: tuple[int, ...]
    """Number of kernels that read each operand; for each result, 1 if it is stored."""
    is_kernel: bool
    """True if these members have a kernel of their own."""
    copied: tuple[Copy, ...]


def _accesses(op: OpClass, timing: Timing) -> list[_Access]:
    """Returns the different memory accesses of the members of a class."""
    ways = Counter((timing.accesses[m], timing.layers.copied.get(m, ())) for m in op.members)
    operands = len(op.op.operands)
    return [
        _Access(count / len(op.members), weights, any(weights[operands:]), copied)
        for (weights, copied), count in ways.items()
    ]
