"""Small parts of StableHLO that device-local programs are built with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from partita.mesh import Axes, Mesh
from partita.program.ir import TensorType
from partita.program.rule import Reach
from partita.stablehlo.building import within
from partita.stablehlo.mlir import filled, hlo, ir

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": hlo.add,
    "max": hlo.maximum,
    "min": hlo.minimum,
    "mul": hlo.multiply,
    "and": hlo.and_,
    "or": hlo.or_,
}
"""The operation by which what devices have of an unreduced value is combined."""


def set_apart(value: Any, *others: Any) -> Any:
    """A value that the compiler does not see into, and that it has once it has the others."""
    return hlo.OptimizationBarrierOp([value, *others]).results[0]


class Builder:
    """Small parts of StableHLO at the current insertion point."""

    def __init__(self, mesh: Mesh, platform: str = "") -> None:
        self.mesh = mesh
        self.platform = platform
        """Platform that runs the program, as JAX names it."""
        self.body: Any = None
        """The block of the device-local program, at whose end everything is built."""
        self._indices: dict[Axes, Any] = {}
        self._partition: Any = None
        self._channels = 0

    def channel(self) -> Any:
        """The handle of a channel that no other collective has."""
        self._channels += 1
        return hlo.ChannelHandle.get(self._channels, 1)

    def type(self, type_: TensorType) -> Any:
        """The MLIR type of a tensor."""
        return ir.RankedTensorType.get(type_.shape, ir.Type.parse(type_.dtype))

    def enter(self, body: Any) -> Any:
        """Goes on building in another block; returns what `leave` needs to come back."""
        outer = self.body, self._indices, self._partition
        self.body, self._indices = body, dict(self._indices)
        return outer

    def leave(self, outer: Any) -> None:
        """Comes back from a block: what was built inside of it is not visible outside."""
        self.body, self._indices, self._partition = outer

    def place(self, op: Any, outputs: Sequence[TensorType]) -> list[Any]:
        """Moves an operation to the end of the body, with these result types; its results."""
        self.body.append(op)
        for result, type_ in zip(op.results, outputs, strict=True):
            result.set_type(self.type(type_))
        return list(op.results)

    def scalar(self, value: int) -> Any:
        """An i32 constant."""
        i32 = ir.IntegerType.get_signless(32)
        type_ = ir.RankedTensorType.get([], i32)
        return hlo.constant(ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(i32, value)))

    def index(self, axes: Axes) -> Any:
        """This device's number along axes, major first, as an i32 scalar."""
        known = self._indices.get(axes)
        if known is not None:
            return known
        total = None
        for axis in axes:
            part = self.coordinate(axis)
            size = self.scalar(self.mesh.sizes[axis])
            total = part if total is None else hlo.add(hlo.multiply(total, size), part)
        assert total is not None
        self._indices[axes] = total
        return total

    def coordinate(self, axis: int) -> Any:
        """This device's number along one axis, as an i32 scalar."""
        if self._partition is None:
            i32 = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
            self._partition = hlo.convert(i32, hlo.partition_id())
        after = range(axis + 1, len(self.mesh.sizes))
        return self.digit(self._partition, self.mesh.size(tuple(after)), self.mesh.sizes[axis])

    def digit(self, number: Any, stride: int, size: int) -> Any:
        """Returns the digit of a number at `stride`, modulo `size`."""
        return hlo.remainder(hlo.divide(number, self.scalar(stride)), self.scalar(size))

    def offset(self, axes: Axes, size: int) -> Any:
        """Returns the start of this device's shard of `size` indices, as an i32 scalar."""
        return hlo.multiply(self.index(axes), self.scalar(size))

    def slice(self, value: Any, shape: Sequence[int], starts: dict[int, Any]) -> Any:
        """The shard of `shape` that starts at `starts` (zero where not given)."""
        zero = self.scalar(0)
        at = [starts.get(dim, zero) for dim in range(len(shape))]
        return hlo.dynamic_slice(value, at, ir.DenseI64ArrayAttr.get(list(shape)))

    def listed(self, numbers: Sequence[int], axes: Axes) -> Any:
        """Selects this device's number from one per shard along axes: an i32 scalar."""
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
        if list(numbers) == [numbers[0] + step * place for place in range(len(numbers))]:
            first = self.scalar(numbers[0])
            return hlo.add(self.offset(axes, step), first) if step else first
        i32 = ir.IntegerType.get_signless(32)
        held: Any = np.array(numbers, np.int32)
        table = ir.DenseElementsAttr.get(held)
        found = self.slice(hlo.constant(table), [1], {0: self.index(axes)})
        return hlo.reshape(ir.RankedTensorType.get([], i32), found)

    def counted(
        self, times: int, starts: Sequence[Any], iterate: Callable[[Any], Sequence[Any]]
    ) -> list[Any]:
        """Builds a loop that runs so many times; returns what it carries at its end.

        Args:
          times: the number of iterations.
          starts: what it carries, before the first.
          iterate: builds an iteration in a block, whose arguments are the number of the iteration
            and what is carried; returns what is carried on.
        """
        first = self.scalar(0)
        types = [value.type for value in (first, *starts)]
        loop = ir.Operation.create(
            "stablehlo.while", results=types, operands=[first, *starts], regions=2
        )
        condition, body = (region.blocks.append(*types) for region in loop.regions)
        with ir.InsertionPoint(condition):
            hlo.return_([self.compare(condition.arguments[0], self.scalar(times), "LT")])
        with ir.InsertionPoint(body):
            carried = iterate(body)
            hlo.return_([hlo.add(body.arguments[0], self.scalar(1)), *carried])
        return list(loop.results)[1:]

    def propagation(self, scalar: Any, like: Any) -> Any:
        """A scalar broadcast to the shape of `like`, in the element type of the scalar."""
        shape = ir.RankedTensorType(like.type).shape
        element = ir.RankedTensorType(scalar.type).element_type
        result = ir.RankedTensorType.get(list(shape), element)
        return hlo.broadcast_in_dim(result, scalar, ir.DenseI64ArrayAttr.get([]))

    def compare(self, a: Any, b: Any, direction: str) -> Any:
        """Elementwise signed comparison: EQ, LT, GE, ..."""
        return hlo.compare(a, b, hlo.ComparisonDirectionAttr.get(direction))

    def fill(self, type_: Any, value: Any) -> Any:
        """A tensor of one Python number."""
        return filled(type_, value)

    def total(self, value: Any, dim: int, combine: str = "add") -> Any:
        """Reduces one dimension by `add` from zeros, or by `and` from ones."""
        type_ = ir.RankedTensorType(value.type)
        shape = [size for d, size in enumerate(type_.shape) if d != dim]
        made = ir.RankedTensorType.get(shape, type_.element_type)
        scalar = ir.RankedTensorType.get([], type_.element_type)
        init = self.fill(scalar, {"add": 0, "and": 1}[combine])
        reduce = hlo.ReduceOp([made], [value], [init], ir.DenseI64ArrayAttr.get([dim]))
        block = reduce.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            hlo.return_([COMBINE[combine](*block.arguments)])
        return reduce.results[0]

    def only_first(self, value: Any, neutral: Any, axes: Iterable[int]) -> Any:
        """`value` on the first device along the axes, `neutral` on the others."""
        first = self.compare(self.index(tuple(sorted(axes))), self.scalar(0), "EQ")
        return hlo.select(self.propagation(first, value), value, neutral)

    def fill_ends(
        self, value: Any, fill: Any, dim: int, reach: Reach, size: int, axes: Axes
    ) -> Any:
        """The window of a device, with another number than zero beyond the ends of the dimension.

        Args:
          value: the window.
          fill: a scalar.
          dim: the dimension.
          reach: what windows there are of it.
          size: of the dimension.
          axes: that split it.
        """
        shards = self.mesh.size(axes)
        firsts = [reach.first(device, shards) for device in range(shards)]
        begin = self.listed([-first for first in firsts], axes)
        end = self.listed([size - first for first in firsts], axes)
        inside = within(value.type, dim, begin, end)
        return hlo.select(inside, value, self.propagation(fill, value))
