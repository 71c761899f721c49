"""`SequenceParallel`: Megatron, and between its layers the sequence along the same axis.

*Reducing Activation Recomputation in Large Transformer Models*, arXiv 2205.05198.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.decisions import Stage
from partita.tactics.combine import in_turn
from partita.tactics.megatron import Megatron
from partita.tactics.options import check
from partita.tactics.parts import Patterns, examples
from partita.tactics.placement import chosen_roles, place_named
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class SequenceParallel:
    """`Megatron`, then the sequence: between heads and hidden units, where the axis is free.

    Each `all_reduce` of Megatron's becomes a `reduce_scatter` and an `all_gather`; what lies
    between (norms, residuals) is computed and kept in shards.

    Args:
      axis: name of the mesh axis.
      patterns: as for `Megatron`.
      vocabulary: as for `Megatron`.
      batch: what holds the examples, with the sequence in dimension 1; or a dict with other
        dimensions, as `ManualPartition` takes it. By default what `DataParallel` takes, but for
        what has one dimension only.
      resolve: where the sequence meets itself and heads are not sharded, the role that gets the
        axis, as for `ManualPartition`.

    Example:
      >>> SequenceParallel().name
      'SequenceParallel(model)'
    """

    axis: str = "model"
    patterns: Patterns | None = None
    vocabulary: bool = True
    batch: Patterns | None = None
    resolve: int | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"SequenceParallel({self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Shards the widths, then the sequence."""
        widths = Megatron(self.axis, self.patterns, self.vocabulary)
        return in_turn(stage, (widths, _Sequence(self)))


@dataclasses.dataclass(frozen=True)
class _Sequence:
    """The second step: the sequence, wherever the axis is free.

    It is taken as a whole color. Propagation from the examples would end at an embedding whose
    vocabulary is sharded.
    """

    of: SequenceParallel

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.of.name

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the sequence of the examples, and all of its color."""
        batch, axis = self.of.batch, stage.context.mesh.axis(self.of.axis)
        if not isinstance(batch, Mapping):
            batch = {w.name: w.dims[0] for w in examples(stage, self.name, batch, 1, "batch")}
        roles = chosen_roles(stage, self.of.resolve, self.name)
        return place_named(stage, batch, axis, roles, colors=True)
