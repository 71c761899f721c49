"""Annotated form of a plan: the original program with Shardy's shardings, for other partitioners.

Every value of one dimension or more has a sharding, arguments and results included, inside loops
and branches too. Where the plan reshards a value on its way to a use, there is a constraint. All
dimensions are *closed*: an open one invites the partitioner to split it further. It would then
split values that the plan keeps replicated, such as a gathered weight.

Annotations cannot express partial sums. A partitioner completes every sum where it is produced,
also those that the plan keeps unreduced and completes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.emit.ordered import reduced
from partita.emit.spmd import per_value, sharding
from partita.emit.writer import Writer
from partita.errors import UnsupportedError
from partita.program.collectives import REDUCE_SCATTER
from partita.program.combining import EXTREMES, NEUTRAL
from partita.program.ir import Operation
from partita.program.op_traits import FULL_TO_SHARD, MANUAL, ROLL, SHARD_TO_FULL
from partita.spmd.instructions import Reshard, Run
from partita.spmd.program import SpmdProgram
from partita.stablehlo import mlir, rolls
from partita.stablehlo.builder import COMBINE
from partita.stablehlo.mlir import ir, sdy
from partita.tiling import Layout


def annotate(spmd: SpmdProgram) -> Any:
    """The annotated module; to be called, and used, within an MLIR context."""
    module = mlir.parse(spmd.program.module)
    _Annotator(spmd, module).run()
    module.operation.verify()
    return module


class _Annotator(Writer):
    """Writes the program on global values: reshards become constraints."""

    def __init__(self, spmd: SpmdProgram, module: Any) -> None:
        super().__init__(spmd.program, spmd.mesh, module)
        self.spmd = spmd
        self.resharded: dict[int, Layout] = {}

    def run(self) -> None:
        spmd = self.spmd
        block = self.begin()
        self.declare_mesh()
        for buffer, argument in zip(spmd.arguments, block.arguments, strict=True):
            self.values[buffer] = argument
        self.fill(block, spmd.instructions, spmd.results, "func.return")
        self._annotate_signature()

    def type_of(self, buffer: int) -> Any:
        return self.build.type(self.spmd.program.values[self.spmd.buffers[buffer].value].type)

    def operate(self, item: Run) -> None:
        operation = self.spmd.program.operations[item.op]
        if operation.kind in (FULL_TO_SHARD, SHARD_TO_FULL):
            raise UnsupportedError(
                f"the shard_map at {operation.source or 'an unknown line'} is manual over some "
                "axes only, which annotations of the values inside cannot say; export the "
                "partitioned form, or make it manual over all axes"
            )
        if operation.kind == ROLL:  # as it was written, for a compiler that knows no rolls
            where = rolls.place(self.template(item.op))
            made = rolls.write(self.values[item.inputs[0]], *where).owner
        elif self.spmd.form(item.op).sums and operation.combine:
            made = self._combined(self.copy(item), operation).owner
        else:
            made = self.copy(item)
            self.build.body.append(made)
        self.wrote(made, item.outputs)

    def _combined(self, made: Any, operation: Operation) -> Any:
        """Returns the result of an operation whose partial results devices combine.

        A partitioner combines them as the partitioned form does: NaN is preserved, and the initial
        value of a reduction counts once.
        """
        combine, start = operation.combine, None
        if operation.traits.reduces and not (combine == "add" and operation.zero_init):
            start = made.operands[1]
            if combine in NEUTRAL:
                made.operands[1] = self.build.fill(start.type, NEUTRAL[combine])
        if combine in EXTREMES:
            result = reduced(self.build, made, combine)
        else:
            self.build.body.append(made)
            result = made.results[0]
        if start is None:
            return result
        return COMBINE[combine](result, self.build.propagation(start, result))

    def wrote(self, operation: Any, outputs: Sequence[int]) -> None:
        super().wrote(operation, outputs)
        self._annotate(operation, [self._layout(buffer) for buffer in outputs])

    def reshard(self, item: Reshard) -> None:
        before = self._layout(item.input)
        after = self.resharded[item.output] = item.step.applied(before)
        value = self.again(item)
        made_here = isinstance(value, ir.OpResult) and item.input not in self.resharded
        if item.step.kind == REDUCE_SCATTER.name and made_here and len(value.owner.results) == 1:
            # The sum is asked for in shards where it is made, not made in full and cut.
            self._annotate(value.owner, [after])
        elif after != before:
            attribute = ir.Attribute.parse(f"#sdy.sharding{sharding(after, self.mesh)}")
            value = sdy.sharding_constraint(value, attribute)
        self.values[item.output] = value

    def _layout(self, buffer: int) -> Layout:
        """The layout of a buffer: resharded there, or as its operation makes it."""
        if buffer in self.resharded:
            return self.resharded[buffer]
        value = self.spmd.program.values[self.spmd.buffers[buffer].value]
        if value.producer is None:
            return self.spmd.argument_layouts[value.position]
        return self.spmd.form(value.producer).makes[value.position]

    def _annotate(self, operation: Any, layouts: Sequence[Layout]) -> None:
        # There is nothing to say of scalars, and manual computations say it themselves.
        if any(layouts) and operation.name != MANUAL:
            operation.attributes["sdy.sharding"] = per_value(layouts, self.mesh)

    def _annotate_signature(self) -> None:
        main = mlir.main_function(self.module)
        spmd = self.spmd
        sides = (("arg_attrs", spmd.argument_layouts), ("res_attrs", spmd.result_layouts))
        for which, layouts in sides:
            known = mlir.attributes_of(main, which, len(layouts))
            annotated = []
            for attributes, layout in zip(known, layouts, strict=True):
                text = f"#sdy.sharding{sharding(layout, self.mesh)}"
                own = {a.name: a.attr for a in attributes} if attributes else {}
                annotated.append(ir.DictAttr.get(own | {"sdy.sharding": ir.Attribute.parse(text)}))
            main.attributes[which] = ir.ArrayAttr.get(annotated)
