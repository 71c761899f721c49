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

    @property
    def changes_program(self) -> bool:
        """True if a decision of it does."""
        return any(each.changes_program for each in self.decided)

    def apply(self, stage: Stage) -> Outcome:
        """Applies the decisions."""
        after = apply(stage, self.decided)
        said = self.said or Outcome(after.assignment)
        began = tuple(dict.fromkeys(actions(stage, self.decided)))
        return dataclasses.replace(
            said,
            assignment=after.assignment,
            decided=self.decided,
            actions=began,
            context=None if after.context is stage.context else after.context,
        )
