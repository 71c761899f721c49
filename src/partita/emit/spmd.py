"""SPMD program -> StableHLO: one manual computation over all mesh axes, collectives explicit.

The operations are those of the program itself, copied into the manual computation and given local
types; nothing is rebuilt from a description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.emit.collectives import EMITTERS
from partita.emit.whole import whole
from partita.emit.writer import Writer
from partita.mesh import Mesh
from partita.spmd.instructions import Reshard, Run
from partita.spmd.program import SpmdProgram
from partita.stablehlo import mlir
from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import ir
from partita.stablehlo.operations import localize
from partita.stablehlo.propagated import MESH, axis_attribute
from partita.stablehlo.templates import templates
from partita.tiling import Layout


def emit(spmd: SpmdProgram, platform: str = "") -> Any:
    """Returns the program as a StableHLO module; call and use it within an MLIR context.

    Args:
      spmd: the program.
      platform: platform that runs it, as JAX names it; by default, the one it was lowered for.
    """
    if spmd.mesh.devices == 1:
        return whole(spmd.program, spmd.mesh)
    module = mlir.parse(spmd.program.module)
    SpmdWriter(spmd, module, platform or spmd.program.platform).run()
    mlir.run_passes(module, "symbol-dce")  # functions that are called no more
    module.operation.verify()
    return module


def operations_of(spmd: SpmdProgram, module: Any) -> dict[int, Any]:
    """Maps operations of the program to their templates in its parsed module, while that lives.

    Call it, and use the result, within an MLIR context.
    """
    found = templates(mlir.main_function(module).entry_block)
    return {op.index: found[op.template] for op in spmd.program.operations if op.template >= 0}


def sharding(layout: Layout, mesh: Mesh) -> str:
    """A layout as Shardy's sharding of one tensor, without the attribute's prefix."""
    dims = ("{" + ", ".join(map(axis_attribute, mesh.axis_names(axes))) + "}" for axes in layout)
    return f"<@{MESH}, [{', '.join(dims)}]>"


def per_value(layouts: Sequence[Layout], mesh: Mesh) -> Any:
    """Shardings of all operands or all results of an operation, as an attribute."""
    inner = ", ".join(sharding(layout, mesh) for layout in layouts)
    return ir.Attribute.parse(f"#sdy.sharding_per_value<[{inner}]>")


class SpmdWriter(Writer):
    """Writes what each device runs: local types, collectives."""

    def __init__(self, spmd: SpmdProgram, module: Any, platform: str) -> None:
        super().__init__(spmd.program, spmd.mesh, module)
        self.build = Builder(spmd.mesh, platform)
        self.spmd = spmd

    def run(self) -> None:
        """Writes the function."""
        block = self.begin()
        self.declare_mesh()
        returned = [*self.original.entry_block.operations][-1].operation
        with ir.InsertionPoint(block):
            manual, body = self._manual(block)
            ir.Operation.create("func.return", operands=manual.results, loc=returned.location)
        for buffer, argument in zip(self.spmd.arguments, body.arguments, strict=True):
            self.values[buffer] = argument
        self.fill(body, self.spmd.instructions, self.spmd.results, "sdy.return")

    def type_of(self, buffer: int) -> Any:
        """The local type of a buffer."""
        return self.build.type(self.spmd.buffers[buffer].type)

    def _manual(self, block: Any) -> tuple[Any, Any]:
        """The manual computation, at the insertion point, and its block."""
        spmd, mesh = self.spmd, self.mesh
        axes = ", ".join(map(axis_attribute, mesh.names))
        values = spmd.program.values
        manual = ir.Operation.create(
            "sdy.manual_computation",
            results=[self.build.type(values[v].type) for v in spmd.program.results],
            operands=list(block.arguments),
            attributes={
                "in_shardings": per_value(spmd.argument_layouts, mesh),
                "out_shardings": per_value(spmd.result_layouts, mesh),
                "manual_axes": ir.Attribute.parse(f"#sdy<manual_axes{{{axes}}}>"),
            },
            regions=1,
        )
        types = [self.type_of(b) for b in spmd.arguments]
        return manual, manual.regions[0].blocks.append(*types)

    def operate(self, item: Run) -> None:
        """Writes one operation, device-local."""
        spmd, made = self.spmd, self.copy(item)
        operation, values = spmd.program.operations[item.op], spmd.program.values
        form = spmd.form(item.op)
        run = LocalRun(
            operation,
            *(form.needs, form.halos, form.makes, form.axes),
            spmd.sums(item.op),
            tuple(spmd.buffers[b].type for b in item.inputs),
            tuple(spmd.buffers[b].type for b in item.outputs),
            tuple(values[v].type for v in operation.operands),
            tuple(values[v].type for v in operation.results),
            spmd.program.partitioned,
        )
        results = localize(made, run, self.build)
        for buffer, result in zip(item.outputs, results, strict=True):
            self.values[buffer] = result

    def reshard(self, item: Reshard) -> None:
        """Writes one step of a reshard."""
        value = self.again(item)
        self.values[item.output] = EMITTERS[item.step.kind](self.build, value, item.step)
