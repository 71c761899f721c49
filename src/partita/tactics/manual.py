"""`ManualPartition`: the user names arguments or results, a dimension and an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.tactics.options import check_dims
from partita.tactics.placement import Dims, chosen_roles, place_named
from partita.tactics.protocol import Outcome, Stage


@dataclasses.dataclass(frozen=True)
class ManualPartition:
    """Shards what the user names along one axis, and all that follows from it.

    Args:
      patterns: pytree paths of arguments and results as JAX prints them, or names of intermediate
        values (`jax.ad_checkpoint.checkpoint_name`), with `*` and `?` as wildcards; each with the
        dimension to shard, several dimensions to try in order (those that a value does not have
        are passed over, those that a loop reads index by index come last), or `"replicate"` to
        keep the value replicated along this axis.
      axis: name of the mesh axis.
      resolve: where a conflict is met, the number of the role that gets the axis; by default the
        role of the dimensions named, if they are in the conflict and in one role of it.

    Example:
      >>> ManualPartition({"batch*": 0}, axis="data").name
      'ManualPartition(batch*: 0 -> data)'
    """

    patterns: Mapping[str, Dims]
    axis: str
    resolve: int | None = None

    def __post_init__(self) -> None:
        check_dims(self)

    @property
    def name(self) -> str:
        """What reports call it."""
        requests = ", ".join(f"{pattern}: {dims}" for pattern, dims in self.patterns.items())
        return f"ManualPartition({requests} -> {self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the named dimensions and propagates the axis from them."""
        axis = stage.context.mesh.axis(self.axis)
        roles = chosen_roles(stage, self.resolve, self.name)
        return place_named(stage, self.patterns, axis, roles)
