"""A program split along one axis -> StableHLO on global values, with a loop over the axis.

The examples of an iteration are spread over the whole batch: of `groups` equal parts of a
dimension, each gives an equal share to every iteration. So each of as many devices that have the
parts does an equal share of every iteration, with examples that it has already. Groups are major,
iterations minor; what an iteration makes is put back in the same places. With one group, the
examples of an iteration are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from partita.emit.spmd import SpmdWriter
from partita.errors import UnsupportedError
from partita.mesh import Axes, Mesh
from partita.program.collectives import ALL_REDUCE, MASK, SLICE
from partita.program.ir import TensorType
from partita.spmd.instructions import Instruction, Reshard, Run
from partita.spmd.program import SpmdProgram
from partita.spmd.time_axis import TimeLoop
from partita.stablehlo import mlir
from partita.stablehlo.builder import COMBINE, Builder
from partita.stablehlo.building import shape_of, with_shape
from partita.stablehlo.mlir import hlo, ir

WIDE = {"bf16": "f32", "f16": "f32"}
"""Element types in which sums of iterations are carried, if they are narrower than that."""


class NeedsPositions(Exception):  # noqa: N818  # caught where the loop is written with one group
    """An operation has to know the positions of its examples, which must be neighbours then."""


def groups_of(spmd: SpmdProgram, devices: int) -> int:
    """Returns the most parts, up to the number of devices, that all split dimensions have."""
    (steps,) = spmd.mesh.sizes
    sizes = {
        factor.size // steps
        for number in spmd.operations_in_order()
        for factor, axes in zip(
            spmd.program.operations[number].rule.factors, spmd.form(number).layout, strict=True
        )
        if axes
    }
    return math.gcd(devices, *sizes)


def write_loop(spmd: SpmdProgram, loop: TimeLoop, module: Any, devices: int) -> None:
    """Writes the program of a module anew, as a loop; within an MLIR context.

    Args:
      spmd: the program, split along one axis only.
      loop: its instructions, divided.
      module: the parsed module of the program.
      devices: number of devices among which the examples of each iteration may be divided.
    """
    _LoopWriter(spmd, loop, module, groups_of(spmd, devices)).run()


class _StepBuilder(Builder):
    """Builds what runs in one iteration: the counter acts as the place along the axis."""

    def __init__(self, mesh: Mesh, platform: str, groups: int) -> None:
        super().__init__(mesh, platform)
        self.groups = groups
        self.counter: Any = None

    def coordinate(self, axis: int) -> Any:
        """The counter of the loop."""
        return self.counter

    def offset(self, axes: Axes, size: int) -> Any:
        """The start of this iteration's part; there is none if it has parts of several groups."""
        if self.groups > 1:
            raise NeedsPositions
        return super().offset(axes, size)

    def parts(self, shape: list[int], dim: int) -> list[int]:
        """Returns a shape with a dimension as (groups, iterations, share of both)."""
        (steps,) = self.mesh.sizes
        share = shape[dim] // self.groups // steps
        return [*shape[:dim], self.groups, steps, share, *shape[dim + 1 :]]

    def _starts(self, rank: int, dim: int) -> list[Any]:
        zero = self.scalar(0)
        return [self.counter if d == dim + 1 else zero for d in range(rank)]

    def take(self, value: Any, dim: int) -> Any:
        """Returns this iteration's part of a whole value."""
        shape = shape_of(value)
        apart = self.parts(shape, dim)
        value = hlo.reshape(with_shape(value, apart), value)
        one = [1 if d == dim + 1 else size for d, size in enumerate(apart)]
        starts = self._starts(len(apart), dim)
        part = hlo.dynamic_slice(value, starts, ir.DenseI64ArrayAttr.get(one))
        shape[dim] = self.groups * apart[dim + 2]
        return hlo.reshape(with_shape(part, shape), part)

    def put(self, stack: Any, part: Any, dim: int) -> Any:
        """Returns a stack, shaped as by `parts`, with this iteration's part."""
        shape = shape_of(stack)
        shape[dim + 1] = 1
        part = hlo.reshape(with_shape(part, shape), part)
        return hlo.dynamic_update_slice(stack, part, self._starts(len(shape), dim))


class _LoopWriter(SpmdWriter):
    """Writes the loop, and what is before and after it on whole values."""

    def __init__(self, spmd: SpmdProgram, loop: TimeLoop, module: Any, groups: int) -> None:
        super().__init__(spmd, module, spmd.program.platform)
        self.loop = loop
        self.build: _StepBuilder = _StepBuilder(spmd.mesh, spmd.program.platform, groups)
        self.whole: dict[int, Any] = {}
        """Whole values of the arguments that are split."""

    def run(self) -> None:
        spmd, loop = self.spmd, self.loop
        returned = [*self.original.entry_block.operations][-1].operation
        block = self.begin()
        rows = zip(spmd.arguments, spmd.argument_layouts, block.arguments, strict=True)
        for buffer, layout, argument in rows:
            self.values[buffer] = argument
            if any(layout):
                self.whole[buffer] = argument
        outer = self.build.enter(block)
        with ir.InsertionPoint(block):
            self._write(loop.before)
            self._write_loop()
            self._write(loop.after)
            results = [self.values[b] for b in spmd.results]
            ir.Operation.create("func.return", operands=results, loc=returned.location)
        self.build.leave(outer)

    def _write(self, instructions: Iterable[Instruction]) -> None:
        for item in instructions:
            self._WRITE[type(item)](self, item)

    def _write_loop(self) -> None:
        starts = list(map(self._start, self._carried()))
        carried = self.build.counted(self.build.mesh.devices, starts, self._iterate)
        self.values.update(self.whole)
        self._finish(carried)

    def _iterate(self, block: Any) -> list[Any]:
        """Writes an iteration in a block; returns what is carried on."""
        outside = self.build.enter(block)
        self.build.counter, *carried = block.arguments
        self._take_arguments()
        self._write(self.loop.body)
        after = [self._carry(number, value) for number, value in enumerate(carried)]
        self.build.leave(outside)
        return after

    def _take_arguments(self) -> None:
        """Cuts the part of every split argument, for the loop."""
        layouts = zip(self.spmd.arguments, self.spmd.argument_layouts, strict=True)
        for buffer, layout in layouts:
            for dim, axes in enumerate(layout):
                if axes:
                    self.values[buffer] = self.build.take(self.whole[buffer], dim)

    # ------------------------------------------------------------------- what the loop carries

    def _carried(self) -> list[TensorType]:
        """Returns the types of sums, stacks and kept values, in this order."""
        buffers, build = self.spmd.buffers, self.build
        found = []
        for step in self.loop.sums:
            type_ = buffers[step.input].type
            wide = WIDE.get(type_.dtype, type_.dtype) if step.step.combine == "add" else type_.dtype
            found.append(TensorType(type_.shape, wide))
        for buffer, dim, _ in self.loop.stacks:
            shape = list(buffers[buffer].type.shape)
            shape[dim] *= build.mesh.devices
            found.append(TensorType(tuple(build.parts(shape, dim)), buffers[buffer].type.dtype))
        return [*found, *(buffers[b].type for b in self.loop.kept)]

    def _start(self, type_: TensorType) -> Any:
        return self.build.fill(self.build.type(type_), 0)

    def _carry(self, number: int, carried: Any) -> Any:
        """Returns a carried value after an iteration."""
        build, loop = self.build, self.loop
        if number < len(loop.sums):
            step = loop.sums[number]
            made = _as(self.values[step.input], carried.type)
            if step.step.combine == "add":
                return hlo.add(carried, made)
            first = build.compare(build.counter, build.scalar(0), "EQ")
            combined = COMBINE[step.step.combine](carried, made)
            return hlo.select(build.propagation(first, made), made, combined)
        number -= len(loop.sums)
        if number < len(loop.stacks):
            buffer, dim, _ = loop.stacks[number]
            return build.put(carried, self.values[buffer], dim)
        buffer = loop.kept[number - len(loop.stacks)]
        if loop.apart and self.spmd.buffers[buffer].type.dtype.startswith(("f", "bf", "complex")):
            return hlo.add(carried, self._scaled(buffer, True, inverse=True))
        return self.values[buffer]

    def _finish(self, carried: list[Any]) -> None:
        """Takes what the loop has carried as the values that are read after it."""
        loop, buffers = self.loop, self.spmd.buffers
        for step, value in zip(loop.sums, carried, strict=False):
            self.values[step.output] = _as(value, self.type_of(step.output))
        rest = carried[len(loop.sums) :]
        for (buffer, dim, output), value in zip(loop.stacks, rest, strict=False):
            shape = list(buffers[buffer].type.shape)
            shape[dim] *= self.build.mesh.devices
            self.values[output] = hlo.reshape(with_shape(value, shape), value)
        self.values.update(zip(loop.kept, rest[len(loop.stacks) :], strict=True))

    # --------------------------------------------------------------------- single instructions

    def operate(self, item: Run) -> None:
        operation = self.spmd.program.operations[item.op]
        form = self.spmd.form(item.op)
        if form.axes and (operation.work is not None or operation.manual):
            raise UnsupportedError(
                f"the shard_map at {operation.source or 'an unknown line'} says what each device "
                "does, and cannot be run in micro-batches"
            )
        dims = [dim for dim, axes in enumerate(form.makes[0]) if axes] if form.makes else []
        if dims and not item.inputs and _is_positional(self.template(item.op), dims):
            made = self.copy(item)
            self.build.body.append(made)
            self.values[item.outputs[0]] = self.build.take(made.results[0], dims[0])
            return
        super().operate(item)

    def reshard(self, item: Reshard) -> None:
        step = item.step
        if step.kind == ALL_REDUCE.name:  # of this iteration alone, for that of all
            self.values[item.output] = self._scaled(item.input, step.combine == "add")
        elif step.is_collective:  # of an argument, which is whole
            self.values[item.output] = self.whole[item.input]
        elif step.kind == MASK.name and self.loop.apart:  # the mean of what iterations have
            self.values[item.output] = self._scaled(item.input, True, inverse=True)
        elif step.kind == SLICE.name and step.window is None and not step.layouts:
            self.values[item.output] = self.build.take(self.again(item), step.dim)
        else:
            super().reshard(item)

    def _scaled(self, buffer: int, scales: bool, inverse: bool = False) -> Any:
        """Returns a value, if it `scales` times the number of iterations, or by it."""
        value, steps = self.values[buffer], self.build.mesh.devices
        if not scales:
            return value
        number = self.build.fill(value.type, steps)
        return hlo.divide(value, number) if inverse else hlo.multiply(value, number)


def _is_positional(op: Any, dims: Sequence[int]) -> bool:
    """Returns whether what an operation makes of nothing differs along dimensions."""
    if "iota_dimension" in op.attributes:
        return op.attributes["iota_dimension"].value in dims
    return mlir.splat(op) is None


def _as(value: Any, type_: Any) -> Any:
    return value if value.type == type_ else hlo.convert(type_, value)
