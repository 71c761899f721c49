"""SPMD program -> StableHLO: one manual computation over all mesh axes, collectives explicit.

The operations are those of the program itself, moved into the manual computation and given local
types; nothing is rebuilt from a description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from partita.emit.collectives import EMITTERS
from partita.mesh import Mesh
from partita.program.ir import Program
from partita.spmd.instructions import Case, Hold, Instruction, Reshard, Run, While
from partita.spmd.program import SpmdProgram
from partita.stablehlo import mlir
from partita.stablehlo.builder import Builder, set_apart
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.matching import matched
from partita.stablehlo.mlir import ir, sdy
from partita.stablehlo.operations import localize
from partita.stablehlo.propagated import MESH, axis_attribute, mesh_attribute
from partita.tiling import Layout


def emit(spmd: SpmdProgram, platform: str = "") -> Any:
    """Returns the program as a StableHLO module; call and use it within an MLIR context.

    Args:
      spmd: the program.
      platform: platform that runs it, as JAX names it; by default, the one it was lowered for.
    """
    module = mlir.parse(spmd.program.module)
    if spmd.mesh.devices > 1:  # on one device the program is what it was
        _Emitter(spmd, module, platform or spmd.program.platform).run()
        mlir.run_passes(module, "symbol-dce")  # functions that are called no more
        module.operation.verify()
    return module


def operations_of(spmd: SpmdProgram, module: Any) -> dict[int, Any]:
    """The MLIR operation of every operation of the program, in its parsed module, while that lives;
    to be called, and used, within an MLIR context."""
    writer = Writer(spmd.program, spmd.mesh, module)
    writer.begin()
    return writer.views


def sharding(layout: Layout, mesh: Mesh) -> str:
    """A layout as Shardy's sharding of one tensor, without the attribute's prefix."""
    dims = ("{" + ", ".join(map(axis_attribute, mesh.axis_names(axes))) + "}" for axes in layout)
    return f"<@{MESH}, [{', '.join(dims)}]>"


def per_value(layouts: Sequence[Layout], mesh: Mesh) -> Any:
    """Shardings of all operands or all results of an operation, as an attribute."""
    inner = ", ".join(sharding(layout, mesh) for layout in layouts)
    return ir.Attribute.parse(f"#sdy.sharding_per_value<[{inner}]>")


class Writer:
    """Writes the instructions of a program as StableHLO.

    A subclass decides how an operation is run, how a value is resharded, and which type a buffer
    has.
    """

    def __init__(self, program: Program, mesh: Mesh, module: Any) -> None:
        self.program = program
        self.mesh = mesh
        self.module = module
        self.build = Builder(mesh)
        self.values: dict[int, Any] = {}
        self.views: dict[int, Any] = {}
        """The MLIR operation of every operation of the program."""
        self.globals: dict[Any, int] = {}
        """Number of the program's value, by MLIR value of the module."""

    def begin(self) -> tuple[Any, list[Any]]:
        """Finds the operations; returns the function's block and its operations."""
        block = mlir.main_function(self.module).entry_block
        operations = [view.operation for view in block.operations]
        self.globals = {argument: i for i, argument in enumerate(block.arguments)}
        for item, view in matched(self.program.body, operations[:-1]):
            if isinstance(item, int):
                self.views[item] = view
                results = self.program.operations[item].results
                self.globals.update(zip(view.results, results, strict=True))
        return block, operations

    def declare_mesh(self) -> None:
        """Writes the mesh at the head of the module."""
        with ir.InsertionPoint.at_block_begin(self.module.body):
            sdy.MeshOp(MESH, ir.Attribute.parse(mesh_attribute(self.mesh)))

    def type_of(self, buffer: int) -> Any:
        """The MLIR type of a buffer."""
        raise NotImplementedError

    def operate(self, item: Run) -> None:
        """Writes one operation."""
        raise NotImplementedError

    def reshard(self, item: Reshard) -> None:
        """Writes one step of a reshard."""
        raise NotImplementedError

    def wrote(self, operation: Any, outputs: Sequence[int]) -> None:
        """Notes what an operation has been written for."""
        self.values.update(zip(outputs, operation.results, strict=True))

    def fill(
        self,
        block: Any,
        instructions: tuple[Instruction, ...],
        results: tuple[int, ...],
        ending: str,
    ) -> None:
        """Builds instructions at the end of a block, and ends it with `results`."""
        outer = self.build.enter(block)
        with ir.InsertionPoint(block):
            for item in instructions:
                self._WRITE[type(item)](self, item)
            ir.Operation.create(ending, operands=[self.values[b] for b in results])
        self.build.leave(outer)

    def _hold(self, hold: Hold) -> None:
        held = [self.values[b] for b in hold.inputs]
        op = ir.Operation.create(
            "stablehlo.optimization_barrier", results=[v.type for v in held], operands=held
        )
        self.wrote(op, hold.outputs)

    def _while(self, loop: While) -> None:
        inputs = [self.values[b] for b in loop.inputs]
        types = [self.type_of(b) for b in loop.outputs]
        op = ir.Operation.create("stablehlo.while", results=types, operands=inputs, regions=2)
        for section, region in zip((loop.condition, loop.body), op.regions, strict=True):
            block = region.blocks.append(*types)
            self.values.update(zip(section.arguments, block.arguments, strict=True))
            self.fill(block, section.instructions, section.results, "stablehlo.return")
        self.wrote(op, loop.outputs)

    def _case(self, case: Case) -> None:
        types = [self.type_of(b) for b in case.outputs]
        index = self.values[case.index]
        boolean = "i1" in str(index.type)
        op = ir.Operation.create(
            "stablehlo.if" if boolean else "stablehlo.case",
            results=types,
            operands=[index],
            regions=len(case.sections),
        )
        for section, region in zip(case.sections, op.regions, strict=True):
            block = region.blocks.append()
            self.fill(block, section.instructions, section.results, "stablehlo.return")
        self.wrote(op, case.outputs)

    def again(self, reshard: Reshard) -> Any:
        """Returns the input of a step, behind a barrier if it repeats an earlier step on
        purpose."""
        value = self.values[reshard.input]
        if reshard.again:
            # Keeps the compiler from merging this with the earlier, equal one.
            value = set_apart(value)
        return value

    def with_inputs(self, item: Run) -> Any:
        """The MLIR operation of a run, its operands replaced by the buffers that it reads."""
        return self.with_operands(item.op, [self.values[b] for b in item.inputs])

    def with_operands(self, op: int, inputs: Sequence[Any]) -> Any:
        """The MLIR operation, its operands replaced, those that its regions capture included."""
        view, operation = self.views[op], self.program.operations[op]
        own = len(view.operands)
        if view.regions and len(inputs) > own:
            captured = dict(zip(operation.operands[own:], inputs[own:], strict=True))
            _replace_captured(view, captured, self.globals)
        for number, value in enumerate(inputs[:own]):
            view.operands[number] = value
        return view

    _WRITE: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        Run: lambda self, item: self.operate(item),
        Reshard: lambda self, item: self.reshard(item),
        Hold: _hold,
        While: _while,
        Case: _case,
    }


class _Emitter(Writer):
    """Writes what each device runs: local types, collectives."""

    def __init__(self, spmd: SpmdProgram, module: Any, platform: str) -> None:
        super().__init__(spmd.program, spmd.mesh, module)
        self.build = Builder(spmd.mesh, platform)
        self.spmd = spmd

    def run(self) -> None:
        block, operations = self.begin()
        self.declare_mesh()
        returned = operations[-1]
        manual, body = self._manual(block, returned)
        for buffer, argument in zip(self.spmd.arguments, body.arguments, strict=True):
            self.values[buffer] = argument
        self.fill(body, self.spmd.instructions, self.spmd.results, "sdy.return")
        for number, result in enumerate(manual.results):
            returned.operands[number] = result
        for view in reversed(list(block.operations)):  # what was replaced and not moved
            if view.operation != manual and view.operation != returned:
                view.operation.erase()

    def type_of(self, buffer: int) -> Any:
        return self.build.type(self.spmd.buffers[buffer].type)

    def _manual(self, block: Any, returned: Any) -> tuple[Any, Any]:
        spmd, mesh = self.spmd, self.mesh
        axes = ", ".join(map(axis_attribute, mesh.names))
        with ir.InsertionPoint(returned):
            manual = ir.Operation.create(
                "sdy.manual_computation",
                results=[v.type for v in returned.operands],
                operands=list(block.arguments),
                attributes={
                    "in_shardings": per_value(spmd.argument_layouts, mesh),
                    "out_shardings": per_value(spmd.result_layouts, mesh),
                    "manual_axes": ir.Attribute.parse(f"#sdy<manual_axes{{{axes}}}>"),
                },
                regions=1,
            )
        types = [self.type_of(b) for b in spmd.arguments]
        body = manual.regions[0].blocks.append(*types)
        return manual, body

    def operate(self, item: Run) -> None:
        spmd, view = self.spmd, self.with_inputs(item)
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
        results = localize(view, run, self.build)
        for buffer, result in zip(item.outputs, results, strict=True):
            self.values[buffer] = result

    def reshard(self, item: Reshard) -> None:
        value = self.again(item)
        self.values[item.output] = EMITTERS[item.step.kind](self.build, value, item.step)


def _replace_captured(view: Any, captured: dict[int, Any], globals_: dict[Any, int]) -> None:
    """Points the regions of an operation to the local shards of the values they capture."""

    def visit(inner: Any) -> Any:
        if inner != view:
            for number, operand in enumerate(inner.operands):
                value = globals_.get(operand)
                if value in captured:
                    inner.operands[number] = captured[value]
        return ir.WalkResult.ADVANCE

    view.walk(visit)
