"""Writers: the instructions of a program as StableHLO, operation for operation.

A writer walks instructions, not the text of the program. Every operation is a copy of its template,
an operation of the module that the program was read from. So a program may run an operation twice,
or in another place, after a pass has changed it. Loops, branches and barriers are built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from partita.mesh import Mesh
from partita.program.ir import Program
from partita.spmd.instructions import Case, Hold, Instruction, Reshard, Run, While
from partita.stablehlo import mlir
from partita.stablehlo.builder import Builder, set_apart
from partita.stablehlo.mlir import ir, sdy
from partita.stablehlo.propagated import MESH, mesh_attribute
from partita.stablehlo.templates import captured, templates


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
        self.original = mlir.main_function(module)
        """The function of the module; the templates live as long as it does."""
        self.templates: list[Any] = templates(self.original.entry_block)

    def begin(self) -> Any:
        """Puts a function without operations in the original's place; returns its block.

        It has the program's results, which may be more than the original has.
        """
        main, block = self.original, self.original.entry_block
        values = self.program.values
        inputs = [argument.type for argument in block.arguments]
        results = [self.build.type(values[v].type) for v in self.program.results]
        attributes = {name: main.attributes[name] for name in main.attributes}
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        if "res_attrs" in attributes:
            known = mlir.attributes_of(main, "res_attrs", 0)
            more = [ir.DictAttr.get({})] * (len(results) - len(known))
            attributes["res_attrs"] = ir.ArrayAttr.get([*known, *more])
        with ir.InsertionPoint(main.operation):
            written = ir.Operation.create(
                "func.func", attributes=attributes, regions=1, loc=main.operation.location
            )
        main.operation.detach_from_parent()
        locations = [argument.location for argument in block.arguments]
        return written.regions[0].blocks.append(*inputs, arg_locs=locations)

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
            # Keeps the compiler from merging this with the earlier, equal one, and from moving it
            # out of the loop in which it waits for what the iteration begins with.
            after = () if reshard.after is None else (self.values[reshard.after],)
            value = set_apart(value, *after)
        return value

    def template(self, op: int) -> Any:
        """The MLIR operation that an operation of the program is a copy of."""
        return self.templates[self.program.operations[op].template]

    def copy(self, item: Run) -> Any:
        """A copy of the template of a run that reads its buffers; in no block yet."""
        return self.copy_with(item.op, [self.values[b] for b in item.inputs])

    def copy_with(self, op: int, inputs: Sequence[Any]) -> Any:
        """A copy of an operation's template with other operands; in no block yet.

        Args:
          op: the operation.
          inputs: the operands, those that its regions capture included.
        """
        template = self.template(op)
        made = template.clone(ip=False)
        own = len(template.operands)
        for number, value in enumerate(inputs[:own]):
            made.operands[number] = value
        if len(inputs) > own:
            _recapture(made, dict(zip(captured(template), inputs[own:], strict=True)))
        return made

    _WRITE: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        Run: lambda self, item: self.operate(item),
        Reshard: lambda self, item: self.reshard(item),
        Hold: _hold,
        While: _while,
        Case: _case,
    }


def _recapture(made: Any, values: dict[Any, Any]) -> None:
    """Points the regions of an operation to other values than those that they capture."""

    def visit(inner: Any) -> Any:
        if inner != made:
            for number, operand in enumerate(inner.operands):
                if operand in values:
                    inner.operands[number] = values[operand]
        return ir.WalkResult.ADVANCE

    made.walk(visit)
