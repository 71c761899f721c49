"""Compute time: a roofline per kernel, from the local sizes of what it computes, reads, writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.analysis import ClassGraph, OpClass
from partita.cost.fusion import FUSIBLE, Fusion
from partita.cost.hardware import Hardware
from partita.cost.timing import Timing
from partita.mesh import Mesh
from partita.program.ir import Operation, Value, Work
from partita.spmd.reshard import shards
from partita.tiling import OpForm

MATMULS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
"""Kinds that run on matrix units, two FLOPs per point of their iteration space."""


class ComputeModel:
    """Prices operation classes; what was priced once is remembered."""

    def __init__(self, graph: ClassGraph, mesh: Mesh, hardware: Hardware, timing: Timing) -> None:
        self.graph = graph
        self.mesh = mesh
        self.bandwidth = hardware.memory_bandwidth.value * hardware.efficiency.memory.value
        self._peaks: dict[str, float] = {}
        self._hardware = hardware
        classes = np.array(graph.op_class, dtype=np.int64)
        self.times: list[float] = np.bincount(classes, timing.op_times, len(graph.ops)).tolist()
        """How often the members of each class run per step, together."""
        self.weights = _read_weights(graph, timing.fusion)
        self.written = [_written_weights(op, graph, timing.fusion) for op in graph.ops]
        self._seconds: dict[OpForm, float] = {}

    def seconds(self, op: OpClass, form: OpForm) -> float:
        """Time of all members of an operation class under a form."""
        known = self._seconds.get(form)
        if known is None:
            known = self._seconds[form] = self.times[op.index] * self._one(op, form)
        return known

    def _one(self, op: OpClass, form: OpForm) -> float:
        moved = self._bytes(op, form) / self.bandwidth
        if op.op.work:
            return moved + self._inside(op.op.work)
        if op.op.kind not in MATMULS:
            return moved
        return max(moved, self.flops(op, form) / self._peak(_dtype(self.graph, op)))

    def _peak(self, dtype: str) -> float:
        """FLOP/s of matrix units on operands of this type."""
        if dtype not in self._peaks:
            efficiency = self._hardware.efficiency.matmul.value
            self._peaks[dtype] = self._hardware.flops(dtype) * efficiency
        return self._peaks[dtype]

    def _inside(self, work: Work) -> float:
        """Seconds of what a region does: its operations on local types, elementwise ones for free.

        What it reads and writes itself is priced as for any other operation.
        """
        total = 0.0
        for op in work.operations:
            if op.kind not in FUSIBLE:
                types = [work.values[v].type for v in (*op.operands, *op.results)]
                seconds = sum(t.bytes for t in types) / self.bandwidth
                if op.kind in MATMULS:
                    peak = self._peak(types[0].dtype)
                    seconds = max(seconds, 2.0 * _points(op, work.values) / peak)
                total += op.times * seconds
        return total

    def flops(self, op: OpClass, form: OpForm) -> float:
        """FLOPs of one member on one device."""
        points = _points(op.op, self.graph.program.values)
        return 2.0 * points / math.prod(self.mesh.sizes[axis] for axis in form.axes)

    def _bytes(self, op: OpClass, form: OpForm) -> float:
        values = self.graph.program.values
        total = 0.0
        for weight, operand, need in zip(
            self.weights[op.index], op.op.operands, form.needs, strict=True
        ):
            if weight:
                total += weight * values[operand].type.bytes / shards(need, self.mesh)
        for weight, result, made in zip(
            self.written[op.index], op.op.results, form.makes, strict=True
        ):
            if weight:
                total += weight * values[result].type.bytes / shards(made, self.mesh)
        return total


def _points(op: Operation, values: Sequence[Value]) -> int:
    """Multiplications of a matrix product or convolution.

    Of a convolution: the kernel, once for each output pixel of each image.
    """
    if op.kind != "stablehlo.convolution":
        return math.prod(factor.size for factor in op.rule.factors)
    kernel, result = (values[v].type.elements for v in (op.operands[1], op.results[0]))
    return kernel * result // values[op.results[0]].type.shape[_output_feature(op)]


def _output_feature(op: Operation) -> int:
    """The dimension of a convolution's result that it shares with the kernel alone."""
    image = {factor for dim in op.rule.operands[0] for factor in dim}
    kernel = {factor for dim in op.rule.operands[1] for factor in dim}
    for dim, made_of in enumerate(op.rule.results[0]):
        if made_of and made_of[-1] in kernel and made_of[-1] not in image:
            return dim
    return len(op.rule.results[0]) - 1


def _dtype(graph: ClassGraph, op: OpClass) -> str:
    return graph.program.values[op.op.operands[0]].type.dtype


def _written_weights(op: OpClass, graph: ClassGraph, fusion: Fusion) -> list[float]:
    """For every result of a class, the share of members that are kernels and store it."""
    operations = graph.program.operations
    kernels = [m for m in op.members if m in fusion.reads and m not in fusion.free]
    return [
        sum(fusion.stored[operations[member].results[number]] for member in kernels)
        / len(op.members)
        for number in range(len(op.op.results))
    ]


def _read_weights(graph: ClassGraph, fusion: Fusion) -> list[Sequence[float]]:
    """For every operand of every class, how many kernels per member read memory through it."""
    weights = [[0.0] * len(op.op.operands) for op in graph.ops]
    for kernel, reads in fusion.reads.items():
        for op, number in reads if kernel not in fusion.free else ():
            weights[graph.op_class[op]][number] += 1
    return [
        [weight / len(op.members) for weight in row]
        for op, row in zip(graph.ops, weights, strict=True)
    ]
