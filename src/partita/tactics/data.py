"""`DataParallel`: every device has some of the examples, and all that is learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.tactics.options import check
from partita.tactics.parts import Patterns, examples
from partita.tactics.placement import place, place_named
from partita.tactics.protocol import Outcome, Stage


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """Shards the examples along an axis, and all that is computed from them.

    Gradients, and other sums over examples, are reduced by one `all_reduce` each.

    Args:
      axis: name of the mesh axis.
      patterns: what holds the examples, in dimension 0; or a dict with other dimensions, as
        `ManualPartition` takes it. By default the arguments called `batch`, `x`, `y`, `inputs`,
        `targets`, `tokens`, `images`, `labels`, `examples`, `source`, `target` or `prompt`, and
        all that is nested in them; scalars are left out.

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
        """What reports call it."""
        return f"DataParallel({self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the dimension of the examples and propagates the axis from there."""
        axis = stage.context.mesh.axis(self.axis)
        if isinstance(self.patterns, Mapping):
            return place_named(stage, self.patterns, axis)
        return place(stage, examples(stage, self.name, self.patterns, 0), axis)
