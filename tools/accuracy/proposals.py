"""The plans that a search itself proposes: the best different ones that it has seen.

A search chooses among plans like these, so that here a wrong price does harm.
"""

from __future__ import annotations

import dataclasses

from partita.search import algorithm
from partita.tactics import AutomaticPartition
from partita.tactics.protocol import Outcome, Stage

COUNT = 10
"""How many are compiled."""


@dataclasses.dataclass(frozen=True)
class Proposal(AutomaticPartition):
    """Takes over the plan in this place of those that the search has seen, 0 for the best."""

    place: int = 0

    def apply(self, stage: Stage) -> Outcome:
        """Searches as without, and takes over another plan; the last, if there are fewer."""
        problem = self._problem(stage)
        algorithm(self.search)(problem, self.budget, self.seed, lambda done, best: None)
        return self._outcome(stage, problem, problem.proposals(self.place + 1)[-1])
