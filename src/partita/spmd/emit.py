"""SPMD program -> StableHLO: one manual computation over all mesh axes, collectives explicit.

The operations are those of the program itself, moved into the manual computation and given local
types; nothing is rebuilt from a description.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.dialects import stablehlo as hlo

from partita.mesh import Mesh
from partita.program import mlir
from partita.program.ir import TensorType
from partita.program.mlir import ir
from partita.spmd.localize import Builder, LocalRun, localize
from partita.spmd.program import Move, Run, SpmdProgram
from partita.spmd.reshard import Step
from partita.tiling import Layout

MESH = "mesh"
"""Symbol of the mesh in emitted modules."""


def emit(spmd: SpmdProgram, serialize: bool = True) -> Any:
    """The program as a portable StableHLO artifact (bytes), or as text if not `serialize`."""
    with mlir.context():
        module = mlir.parse(spmd.program.module)
        _Emitter(spmd, module).run()
        module.operation.verify()
        if not serialize:
            return module.operation.get_asm()
        return mlir.serialize(module)


def mesh_attribute(mesh: Mesh) -> str:
    """The mesh in Shardy's syntax."""
    return "#sdy.mesh<[" + ", ".join(f'"{name}"={size}' for name, size in mesh) + "]>"


def sharding(layout: Layout, mesh: Mesh) -> str:
    """A layout as Shardy's sharding of one tensor, without the attribute's prefix."""
    dims = ("{" + ", ".join(f'"{name}"' for name in mesh.axis_names(axes)) + "}" for axes in layout)
    return f"<@{MESH}, [{', '.join(dims)}]>"


class _Emitter:
    def __init__(self, spmd: SpmdProgram, module: Any) -> None:
        self.spmd = spmd
        self.mesh = spmd.mesh
        self.module = module
        self.build = Builder(spmd.mesh)
        self.values: dict[int, Any] = {}
        self.channel = 0

    def run(self) -> None:
        main = mlir.main_function(self.module)
        block = main.entry_block
        operations = [view.operation for view in block.operations]
        returned = operations.pop()
        with ir.InsertionPoint.at_block_begin(self.module.body):
            sdy.MeshOp(MESH, ir.Attribute.parse(mesh_attribute(self.mesh)))
        manual, body = self._manual(block, returned)
        for buffer, argument in zip(self.spmd.arguments, body.arguments, strict=True):
            self.values[buffer] = argument
        globals_ = self._globals(block, operations)
        self.build.body = body
        with ir.InsertionPoint(body):
            for item in self.spmd.instructions:
                if isinstance(item, Move):
                    self.values[item.output] = self._move(item)
                else:
                    self._run(item, operations[item.op], globals_)
            results = [self.values[b] for b in self.spmd.results]
            ir.Operation.create("sdy.return", operands=results)
        for number, result in enumerate(manual.results):
            returned.operands[number] = result
        for view in reversed(list(block.operations)):  # what was replaced and not moved
            if view.operation != manual and view.operation != returned:
                view.operation.erase()

    def _manual(self, block: Any, returned: Any) -> tuple[Any, Any]:
        spmd, mesh = self.spmd, self.mesh

        def per_value(layouts: tuple[Layout, ...]) -> Any:
            inner = ", ".join(sharding(layout, mesh) for layout in layouts)
            return ir.Attribute.parse(f"#sdy.sharding_per_value<[{inner}]>")

        axes = ", ".join(f'"{name}"' for name in mesh.names)
        with ir.InsertionPoint(returned):
            manual = ir.Operation.create(
                "sdy.manual_computation",
                results=[v.type for v in returned.operands],
                operands=list(block.arguments),
                attributes={
                    "in_shardings": per_value(spmd.argument_layouts),
                    "out_shardings": per_value(spmd.result_layouts),
                    "manual_axes": ir.Attribute.parse(f"#sdy<manual_axes{{{axes}}}>"),
                },
                regions=1,
            )
        types = [self.build.type(spmd.buffers[b].type) for b in spmd.arguments]
        body = manual.regions[0].blocks.append(*types)
        return manual, body

    def _globals(self, block: Any, operations: list[Any]) -> dict[Any, int]:
        """Numbers of the program's values, by the MLIR values they were imported from."""
        numbers = {argument: i for i, argument in enumerate(block.arguments)}
        for op, view in zip(self.spmd.program.operations, operations, strict=True):
            for value, result in zip(op.results, view.results, strict=True):
                numbers[result] = value
        return numbers

    def _run(self, item: Run, view: Any, globals_: dict[Any, int]) -> None:
        spmd = self.spmd
        operation = spmd.program.operations[item.op]
        inputs = [self.values[b] for b in item.inputs]
        own = len(view.operands)
        if view.regions and len(inputs) > own:
            captured = dict(zip(operation.operands[own:], inputs[own:], strict=True))
            _replace_captured(view, captured, globals_)
        for number, value in enumerate(inputs[:own]):
            view.operands[number] = value
        run = LocalRun(
            operation,
            spmd.form(item.op),
            spmd.sums(item.op),
            tuple(spmd.buffers[b].type for b in item.inputs),
            tuple(spmd.buffers[b].type for b in item.outputs),
        )
        results = localize(view, run, self.build)
        for buffer, result in zip(item.outputs, results, strict=True):
            self.values[buffer] = result

    def _move(self, move: Move) -> Any:
        value = self.values[move.input]
        if move.again:
            # Keeps the compiler from merging this with the earlier, equal move.
            value = hlo.optimization_barrier([value])
            value = value[0] if isinstance(value, list | tuple) else value
        return _MOVES[move.step.kind](self, value, move.step)

    def _slice(self, value: Any, step: Step) -> Any:
        size = step.after.shape[step.dim]
        starts = {step.dim: self.build.offset(step.axes, size)}
        return self.build.slice(value, step.after.shape, starts)

    def _all_gather(self, value: Any, step: Step) -> Any:
        return ir.Operation.create(
            "stablehlo.all_gather",
            results=[self.build.type(step.after)],
            operands=[value],
            attributes={"all_gather_dim": _i64(step.dim), **self._group(step)},
        ).results[0]

    def _all_reduce(self, value: Any, step: Step) -> Any:
        return self._reducing("stablehlo.all_reduce", value, step, {})

    def _reduce_scatter(self, value: Any, step: Step) -> Any:
        extra = {"scatter_dimension": _i64(step.dim)}
        return self._reducing("stablehlo.reduce_scatter", value, step, extra)

    def _reducing(self, name: str, value: Any, step: Step, extra: dict[str, Any]) -> Any:
        op = ir.Operation.create(
            name,
            results=[self.build.type(step.after)],
            operands=[value],
            attributes={**extra, **self._group(step)},
            regions=1,
        )
        scalar = self.build.type(TensorType((), step.before.dtype))
        block = op.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            hlo.return_([_COMBINE[step.combine](*block.arguments)])
        return op.results[0]

    def _all_to_all(self, value: Any, step: Step) -> Any:
        return ir.Operation.create(
            "stablehlo.all_to_all",
            results=[self.build.type(step.after)],
            operands=[value],
            attributes={
                "split_dimension": _i64(step.split),
                "concat_dimension": _i64(step.dim),
                "split_count": _i64(self.mesh.size(step.axes)),
                **self._group(step, global_ids=False),
            },
        ).results[0]

    def _group(self, step: Step, global_ids: bool = True) -> dict[str, Any]:
        self.channel += 1
        groups = ir.Attribute.parse(
            f"dense<{self.mesh.groups(step.axes)}> : tensor<"
            f"{self.mesh.devices // self.mesh.size(step.axes)}x{self.mesh.size(step.axes)}xi64>"
        )
        attributes = {
            "replica_groups": groups,
            "channel_handle": hlo.ChannelHandle.get(self.channel, 1),
        }
        if global_ids:
            attributes["use_global_device_ids"] = ir.UnitAttr.get()
        return attributes


_MOVES = {
    "slice": _Emitter._slice,
    "all_gather": _Emitter._all_gather,
    "all_reduce": _Emitter._all_reduce,
    "reduce_scatter": _Emitter._reduce_scatter,
    "all_to_all": _Emitter._all_to_all,
}

_COMBINE = {
    "add": hlo.add,
    "max": hlo.maximum,
    "min": hlo.minimum,
    "mul": hlo.multiply,
    "and": hlo.and_,
    "or": hlo.or_,
}


def _i64(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _replace_captured(view: Any, captured: dict[int, Any], globals_: dict[Any, int]) -> None:
    """Points the regions of an operation to the local pieces of the values they capture."""

    def visit(inner: Any) -> Any:
        if inner != view:
            for number, operand in enumerate(inner.operands):
                value = globals_.get(operand)
                if value in captured:
                    inner.operands[number] = captured[value]
        return ir.WalkResult.ADVANCE

    view.walk(visit)
