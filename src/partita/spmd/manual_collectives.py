"""Collectives inside of manual computations, which the program itself contains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partita.mesh import Mesh
from partita.program.ir import ManualCollective, Operation
from partita.spmd.reshard import shards
from partita.tiling import OpForm


def collectives_inside(op: Operation, form: OpForm, mesh: Mesh) -> Iterator[ManualCollective]:
    """Yields the collectives of an operation, with the bytes that each device moves.

    If the computation is manual over all axes, its types are local, and so are its collectives. If
    it is manual over some, operands of a collective are split along the others, as the form says.

    Args:
      op: the operation.
      form: its form on each device.
      mesh: the mesh of the plan.
    """
    for number, own in enumerate(op.work.collectives if op.work else ()):
        if op.traits.collective:
            own = dataclasses.replace(own, bytes=own.bytes // shards(form.needs[number], mesh))
        yield own
