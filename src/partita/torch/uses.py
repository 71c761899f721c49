"""Placements in which a plan's program reads its values, where a module uses them.

A parameter may be stored in shards and gathered for its use. An activation may be kept in another
placement than the one a module reads. Both are read from the lowering, in the forward part of the
program.
"""

from __future__ import annotations

from partita.plan import Plan
from partita.torch.placements import Placements, placements_of

BACKWARD = "transpose("
"""Part of the scopes that JAX gives to operations of a backward."""


class Uses:
    """The uses of the values of one plan's program."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.uses = plan.program.uses()

    def kept(self, value: int) -> Placements:
        """Returns the placements in which a value is kept, outstanding partial sums included."""
        lowering = self.plan.spmd.lowering
        kept = lowering.plans[lowering.graph.value_class[value]]
        return placements_of(kept.layout, self.plan.mesh.sizes, kept.unreduced)

    def read(self, value: int, scope: str = "") -> Placements:
        """Returns the placements in which the first operation that uses a value reads it.

        Operations that only convert or move it are looked through: what is gathered may be what
        they make.

        Args:
          value: of the program.
          scope: of the uses that count, if any is in it: the path of a module.
        """
        program = self.plan.program
        uses = self.uses[value]
        inside = [use for use in uses if scope and scope in program.operations[use[0]].scope]
        if not (inside or uses):
            return self.kept(value)
        op, number = (inside or uses)[0]
        operation = program.operations[op]
        layout, _ = self.plan.spmd.form(op).need(number)
        own = placements_of(layout, self.plan.mesh.sizes)
        moves = operation.traits.converts or operation.traits.read_through
        if moves and self.uses[operation.results[0]]:
            behind = self.read(operation.results[0], scope)
            return tuple(
                there if there.is_replicate() else here
                for here, there in zip(own, behind, strict=True)
            )
        return own

    def shared(self, value: int) -> Placements | None:
        """Returns the placements that all operations of the forward read a value in.

        Returns None if they differ, or there is none. One redistribution then serves them all.
        """
        program = self.plan.program
        found = {
            placements_of(self.plan.spmd.form(op).need(number)[0], self.plan.mesh.sizes)
            for op, number in self.uses[value]
            if BACKWARD not in program.operations[op].scope
        }
        return found.pop() if len(found) == 1 else None
