"""Mesh axes that do nothing: all devices along them do the same work.

An operation divides its work along the axes of its form: each device along them runs a part of its
iteration space. An axis is *idle* if no operation that takes time divides its work along it. The
cost model decides which take time; one that is computed inside another's kernel counts there.
Arrays may be sharded along an idle axis nevertheless: each is gathered before use, which saves
memory but no work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from partita.analysis import OpClass
from partita.cost.compute.model import ComputeModel
from partita.escape import printed
from partita.mesh import Mesh
from partita.spmd import Lowering


@dataclasses.dataclass(frozen=True)
class IdleAxis:
    """An axis of the mesh along which all devices do the same work."""

    name: str
    size: int
    """Number of devices that do the same work."""
    shards_memory: bool
    """True if arrays are sharded along it, which saves memory but no work."""

    @property
    def effect(self) -> str:
        """Effect of the axis, in words."""
        work = f"its {self.size} devices do the same work"
        return f"shards memory only: {work}" if self.shards_memory else work

    @printed
    def __str__(self) -> str:
        return f"{self.name}: {self.effect}"


def idle_axes(lowering: Lowering, compute: ComputeModel) -> tuple[IdleAxis, ...]:
    """Returns the axes of a mesh along which a lowering divides no work, in the order of the mesh.

    Args:
      lowering: of a tiling.
      compute: says which operations of its class graph take time.
    """
    mesh, busy = lowering.mesh, set[int]()
    for op, form in zip(lowering.graph.ops, lowering.forms, strict=True):
        axes = form.axes.union(_inside(op, mesh))
        if not axes <= busy and compute.seconds(op, form) > 0:
            busy |= axes
    sharded = {a for plan in lowering.plans for axes in plan.layout for a in axes}
    return tuple(
        IdleAxis(name, size, axis in sharded)
        for axis, (name, size) in enumerate(mesh)
        if size > 1 and axis not in busy
    )


def _inside(op: OpClass, mesh: Mesh) -> Iterable[int]:
    """Returns the axes along which a manual computation makes devices do different things."""
    work = op.op.work
    return (mesh.axis(name) for each in work.collectives for name in each.axes) if work else ()
