"""`FullyShardedDataParallel`: examples and all that is learned along one axis."""

from __future__ import annotations

import dataclasses

from partita.decisions import Stage
from partita.tactics.combine import in_turn
from partita.tactics.data import shard_examples
from partita.tactics.options import check
from partita.tactics.parts import Patterns
from partita.tactics.protocol import Outcome
from partita.tactics.zero import ZeRO


@dataclasses.dataclass(frozen=True)
class FullyShardedDataParallel:
    """`DataParallel`, then `ZeRO` of stage 3: no device has all of anything.

    Each parameter is gathered before use, and its gradient is summed into shards.

    Args:
      axis: name of the mesh axis.
      patterns: of the parameters, as for `ZeRO`.
      optimizer: patterns of the optimizer state, as for `ZeRO`.
      batch: what holds the examples, as the `patterns` of `DataParallel`.

    Example:
      >>> FullyShardedDataParallel().name
      'FullyShardedDataParallel(data)'
    """

    axis: str = "data"
    patterns: Patterns | None = None
    optimizer: Patterns | None = None
    batch: Patterns | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"FullyShardedDataParallel({self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Shards the examples, then the state."""
        state = ZeRO(3, self.axis, self.patterns, self.optimizer)
        return in_turn(stage, (_Examples(self), state))


@dataclasses.dataclass(frozen=True)
class _Examples:
    """The first step: the examples, found and named in messages as this tactic's own."""

    of: FullyShardedDataParallel

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.of.name

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the dimension of the examples and propagates the axis from there."""
        return shard_examples(stage, self.of.axis, self.of.batch, self.name, "batch")
