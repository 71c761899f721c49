"""`Recorded`: what a tactic decided once, without the tactic: it stands in plans from files."""

from __future__ import annotations

import dataclasses

from partita.tactics.protocol import Directive, Outcome, Stage
from partita.tiling import Assignment


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Decides what is recorded, whatever was decided before."""

    name: str
    assignment: Assignment = dataclasses.field(repr=False)
    directives: tuple[Directive, ...] = dataclasses.field(default=(), repr=False)

    def apply(self, stage: Stage) -> Outcome:
        """What is recorded."""
        return Outcome(self.assignment, directives=self.directives)
