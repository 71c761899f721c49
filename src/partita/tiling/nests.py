"""Loop nests: a tiling read as loops around each operation (PartIR:Core).

A factor of an operation that is split along axes is a loop over each of them. Every iteration
slices the operands, runs the operation on the slices, and puts what it makes into the result:
*tile* puts it in its place along a dimension, *sum* (or *max*, ...) combines it with what the
iterations before have made.
"""

from __future__ import annotations

import dataclasses

from partita.mesh import Axes, Layout, Mesh
from partita.program.ir import Operation, Program
from partita.tiling.forms import OpForm, form_of
from partita.tiling.tiling import Assignment


@dataclasses.dataclass(frozen=True, slots=True)
class AxisLoop:
    """A loop over one mesh axis."""

    axis: int
    dims: tuple[int | None, ...] = ()
    """Dimension of each result along which slices are put into their places."""
    combine: str = ""
    """Operation that combines slices for the same place: add, max, min, mul, and, or."""

    def show(self, mesh: Mesh) -> str:
        """`"data"=4 [tile 0]`."""
        what = "sum" if self.combine == "add" else self.combine
        if not what:
            dims = self.dims[:1] if len(set(self.dims)) == 1 else self.dims
            what = "tile " + "/".join("-" if dim is None else str(dim) for dim in dims)
        return f'"{mesh.names[self.axis]}"={mesh.sizes[self.axis]} [{what}]'


@dataclasses.dataclass(frozen=True, slots=True)
class Nest:
    """An operation under its loops, outermost first; no loops if it is not split."""

    loops: tuple[AxisLoop, ...]
    form: OpForm
    """Layouts by which an iteration slices operands, and places its slices in the results."""

    @property
    def axes(self) -> Axes:
        """The axes of the loops, outermost first."""
        return tuple(loop.axis for loop in self.loops)


@dataclasses.dataclass(frozen=True)
class LoopNests:
    """A program whose operations run in turn on unsharded values, each in its loop nest."""

    program: Program
    mesh: Mesh
    assignment: Assignment
    """The layouts of operations and values, as the tactics asked for them."""

    def nest(self, op: int) -> Nest:
        """Returns the loops of an operation."""
        return nest_of(self.program.operations[op], self.assignment.ops[op])


def nest_of(operation: Operation, layout: Layout) -> Nest:
    """Returns the loops of an operation under a layout of its factors.

    Those that tile come first, in the order of the result's dimensions, those that combine last.
    """
    rule, form = operation.rule, form_of(operation.rule, layout)
    tiles = []
    for number, axes in enumerate(layout):
        if axes and rule.factors[number].kind != "reduction":
            dims = tuple(
                next((d for d, dim in enumerate(tensor) if rule.leading(dim) == number), None)
                for tensor in rule.results
            )
            tiles += [AxisLoop(axis, dims) for axis in axes]
    tiles.sort(key=lambda loop: [-1 if dim is None else dim for dim in loop.dims])
    combines = [
        AxisLoop(axis, combine=operation.combine or "add")
        for factor, axes in zip(rule.factors, layout, strict=True)
        if factor.kind == "reduction"
        for axis in axes
    ]
    return Nest((*tiles, *combines), form)
