"""`Recorded`: what a tactic decided once, without the tactic: it stands in plans from files."""

from __future__ import annotations

import dataclasses

from partita.decisions import Decision, Stage, actions, apply
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Applies decisions that were made once, and says what was said of them then."""

    name: str
    decided: tuple[Decision, ...] = dataclasses.field(default=(), repr=False)
    said: Outcome | None = dataclasses.field(default=None, repr=False)
    """Report of the tactic."""

    def apply(self, stage: Stage) -> Outcome:
        """Applies the decisions."""
        reached = apply(stage, self.decided).assignment
        said = self.said or Outcome(reached)
        began = tuple(dict.fromkeys(actions(stage, self.decided)))
        return dataclasses.replace(said, assignment=reached, decided=self.decided, actions=began)
