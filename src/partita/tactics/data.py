"""`DataParallel`: every device has some of the examples, and all that is learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.decisions import Stage
from partita.tactics.options import check
from partita.tactics.parts import Patterns, examples
from partita.tactics.placement import place, place_named
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """Shards the examples along an axis, and all that is computed from them.

    Gradients, and other sums over examples, are reduced by one `all_reduce` each.

    Args:
      axis: name of the mesh axis.
      patterns: what holds the examples, in dimension 0; or a dict with other dimensions, as
        `ManualPartition` takes it. By default the arguments called `batch`, `x`, `y`, `inputs`,
        `targets`, `tokens`, `images`, `labels`, `examples`, `source`, `target` or `prompt`, and
        all that is nested in them; if there are none, an argument of any name that has such keys,
        as `data["inputs"]`. Scalars are left out.

    Example:
      >>> DataParallel().name
      'DataParallel(data)'
    """

    axis: str = "data"
    patterns: Patterns | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"DataParallel({self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the dimension of the examples and propagates the axis from there."""
        return shard_examples(stage, self.axis, self.patterns, self.name, "patterns")


def shard_examples(
    stage: Stage, axis: str, patterns: Patterns | None, tactic: str, option: str
) -> Outcome:
    """Shards the examples along an axis, and all that is computed from them.

    Args:
      stage: what has been decided so far.
      axis: name of the mesh axis.
      patterns: what holds the examples, as for `DataParallel`.
      tactic: that asks, for messages.
      option: of the tactic that takes the patterns, for messages.
    """
    number = stage.context.mesh.axis(axis)
    if isinstance(patterns, Mapping):
        return place_named(stage, patterns, number)
    return place(stage, examples(stage, tactic, patterns, 0, option), number)
