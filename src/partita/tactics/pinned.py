"""`Pinned`: a tactic whose axis stops at named values, which stay open for later ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partita.decisions import Stage
from partita.errors import TacticError
from partita.options import wrong
from partita.program.names import match
from partita.tactics.combine import while_pinned
from partita.tactics.manual import ManualPartition
from partita.tactics.options import check
from partita.tactics.parts import as_patterns
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class Pinned:
    """A `ManualPartition` that does not propagate past named values.

    They are pinned along the axis while it propagates, and only then: unlike values with
    `"replicate"`, later tactics may shard them along it. So two tactics can use one axis on both
    sides of a value, and the value is exchanged between them.

    Args:
      tactic: what to apply.
      at: patterns of arguments, results and tagged values (`jax.ad_checkpoint.checkpoint_name`)
        where its axis stops.

    Raises (when applied):
      UnknownNameError: a pattern that matches nothing.

    Example:
      >>> Pinned(ManualPartition({"cache": 0}, axis="model"), at=("queries",)).name
      'ManualPartition(cache: 0 -> model) up to queries'
    """

    tactic: ManualPartition
    at: str | Sequence[str]

    def __post_init__(self) -> None:
        if not isinstance(self.tactic, ManualPartition):
            raise wrong("Pinned: tactic", self.tactic, "a ManualPartition", TacticError)
        check(self)
        object.__setattr__(self, "at", as_patterns(self.at))

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"{self.tactic.name} up to {', '.join(self.at)}"

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it shards along."""
        return self.tactic.axes

    def apply(self, stage: Stage) -> Outcome:
        """Applies the tactic between the pinned values."""
        program, mesh = stage.context.analysis.program, stage.context.mesh
        values = [value for pattern in self.at for _, value in match(program, pattern)]
        pins = {(value, mesh.axis(axis)) for value in values for axis in self.axes}
        return while_pinned(stage, pins, [self.tactic])
