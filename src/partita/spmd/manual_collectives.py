"""The collectives that a program has inside of manual computations, which it says itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partita.mesh import Mesh
from partita.program.ir import ManualCollective, Operation
from partita.spmd.reshard import shards
from partita.tiling import OpForm


def collectives_inside(op: Operation, form: OpForm, mesh: Mesh) -> Iterator[ManualCollective]:
    """The collectives of an operation, with the bytes that each device has of what they move.

    A computation that is manual over all axes is on local types, and its collectives are. One that
    is manual over some is split along the others, too: each operand of a collective as it runs.

    Args:
      op: the operation.
      form: how it runs on each device.
      mesh: of the plan.
    """
    for number, own in enumerate(op.work.collectives if op.work else ()):
        if op.traits.collective:
            own = dataclasses.replace(own, bytes=own.bytes // shards(form.needs[number], mesh))
        yield own
