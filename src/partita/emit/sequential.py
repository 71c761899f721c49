"""Loop nests -> StableHLO for one device: PartIR:Core as a program that runs.

Operations take global values and return global values. A split operation becomes a `while` loop.
Each iteration does the work of one device in an SPMD program: slice the operands, run the
device-local form of the operation, write the shards into place. There are no collectives, no
reshards and no unreduced values. So this defines what a tiling computes, whatever the lowering
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.emit.exchange import window
from partita.emit.whole import WholeWriter
from partita.errors import UnsupportedError
from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.program.op_traits import CONSTRAINT, FULL_TO_SHARD, MANUAL, ROLL, SHARD_TO_FULL
from partita.program.rule import Halo
from partita.spmd.exchange import gathered
from partita.spmd.instructions import Run
from partita.stablehlo import mlir, rolls
from partita.stablehlo.builder import COMBINE, Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations import localize
from partita.stablehlo.rules.calls import PARTITIONED_CALL
from partita.tiling import Axes, Layout, LoopNests, Nest, local_type, read_type


def sequential(nests: LoopNests) -> Any:
    """The program as a StableHLO module; to be called, and used, within an MLIR context."""
    module = mlir.parse(nests.program.module)
    _Sequencer(nests, module).run()
    module.operation.verify()
    return module


class _Iteration(Builder):
    """Builds one iteration of a loop nest: its place in the nest acts as a device's place."""

    def __init__(self, mesh: Mesh, axes: Axes, body: Any, number: Any, platform: str) -> None:
        super().__init__(mesh, platform)
        self.axes = axes
        self.body = body
        self.number = number
        """Number of the iteration; the innermost loop counts fastest."""

    def coordinate(self, axis: int) -> Any:
        """The index of the loop over an axis."""
        inner = self.axes[self.axes.index(axis) + 1 :]
        return self.digit(self.number, self.mesh.size(inner), self.mesh.sizes[axis])

    def cut(self, value: Any, shard: TensorType, layout: Layout, halo: Halo) -> Any:
        """Returns the shard or window of an operand that an iteration reads."""
        if not any(layout):
            return value
        if not shard.elements:
            return self.fill(self.type(shard), 0)
        starts = self._starts(layout, shard.shape)
        for dim, reach in enumerate(halo):
            if reach is not None:
                shards = self.mesh.size(layout[dim])
                whole = ir.RankedTensorType(value.type).shape[dim]
                made = gathered(reach, whole, shards)
                value = window(self, [value], dim, made, layout[dim])
                starts.pop(dim)
        return self.slice(value, shard.shape, starts)

    def _starts(self, layout: Layout, sizes: Sequence[int]) -> dict[int, Any]:
        """Returns the start of this iteration's shard, along split dimensions."""
        return {dim: self.offset(axes, sizes[dim]) for dim, axes in enumerate(layout) if axes}

    def put(self, result: Any, made: Any, shard: TensorType, layout: Layout, nest: Nest) -> Any:
        """The result so far with what this iteration has made of it."""
        if not shard.elements:
            return result
        starts, sums = self._starts(layout, shard.shape), tuple(sorted(nest.form.sums))
        if sums:
            before = self.slice(result, shard.shape, starts)
            first = self.compare(self.index(sums), self.scalar(0), "EQ")
            combined = COMBINE[nest.loops[-1].combine](before, made)
            made = hlo.select(self.propagation(first, made), made, combined)
        zero = self.scalar(0)
        at = [starts.get(dim, zero) for dim in range(len(shard.shape))]
        return hlo.dynamic_update_slice(result, made, at)


class _Sequencer(WholeWriter):
    """Writes the program on global values, split operations as loops."""

    def __init__(self, nests: LoopNests, module: Any) -> None:
        super().__init__(nests.program, nests.mesh, module)
        self.nests = nests

    def operate(self, item: Run) -> None:
        operation = self.program.operations[item.op]
        if operation.kind == CONSTRAINT:  # its result is its operand
            self.values[item.outputs[0]] = self.values[item.inputs[0]]
            return
        nest = self.nests.nest(item.op)
        partitioned = operation.target == PARTITIONED_CALL and nest.loops
        if operation.kind in (MANUAL, FULL_TO_SHARD, SHARD_TO_FULL) or partitioned:
            what = "custom_partitioning function" if partitioned else "shard_map"
            raise UnsupportedError(
                f"the {what} at {operation.source or 'an unknown line'} says what each device "
                "does, and devices there exchange what they make: it cannot run on one; run the "
                "plan with Plan.jit"
            )
        if operation.kind == ROLL and not nest.loops:
            where = rolls.place(self.template(item.op))
            self.values[item.outputs[0]] = rolls.write(self.values[item.inputs[0]], *where)
            return
        if not nest.loops:
            super().operate(item)
            return

        def iterate(block: Any) -> list[Any]:
            number, *totals = block.arguments
            build = _Iteration(self.mesh, nest.axes, block, number, self.program.platform)
            return self._iterate(item, nest, build, totals)

        totals = [self.build.fill(self.type_of(value), 0) for value in item.outputs]
        made = self.build.counted(self.mesh.size(nest.axes), totals, iterate)
        self.values.update(zip(item.outputs, made, strict=True))

    def _iterate(
        self, item: Run, nest: Nest, build: _Iteration, totals: Sequence[Any]
    ) -> list[Any]:
        """Runs one iteration; returns the results so far with its contribution."""
        form, operation = nest.form, self.program.operations[item.op]
        reads = tuple(self.program.values[v].type for v in item.inputs)
        makes = tuple(self.program.values[v].type for v in item.outputs)
        needs = list(zip(reads, form.needs, form.halos, strict=True))
        inputs = tuple(read_type(*each, self.mesh) for each in needs)
        outputs = tuple(
            local_type(type_, layout, self.mesh)
            for type_, layout in zip(makes, form.makes, strict=True)
        )
        cut = [
            build.cut(self.values[value], shard, need, halo)
            for value, shard, (_, need, halo) in zip(item.inputs, inputs, needs, strict=True)
        ]
        layouts = form.needs, form.halos, form.makes, form.axes
        local = LocalRun(operation, *layouts, form.sums, inputs, outputs, reads, makes, {})
        made = localize(self.copy_with(item.op, cut), local, build)
        rows = zip(totals, made, outputs, form.makes, strict=True)
        return [build.put(*row, nest) for row in rows]
