"""`ManualPartition`: the user names arguments or results, a dimension and an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from jax.sharding import PartitionSpec

from partita.decisions import Stage
from partita.errors import TacticError
from partita.frontend.specs import axes_of
from partita.mesh import Mesh
from partita.program.names import match
from partita.tactics.combine import joined
from partita.tactics.options import check_dims
from partita.tactics.placement import Dims, chosen_roles, place_named
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class ManualPartition:
    """Shards what the user names along one axis, and all that follows from it.

    Args:
      patterns: pytree paths of arguments and results as JAX prints them, or names of intermediate
        values (`jax.ad_checkpoint.checkpoint_name`), with `*` and `?` as wildcards; each with the
        dimension to shard, several dimensions to try in order (those that a value does not have
        are passed over, those that a loop reads index by index come last), or `"replicate"` to
        keep the value replicated along this axis. Or with a `PartitionSpec`, which names its axes
        itself: the value is sharded just so, and along no other axis. With
        `PartitionSpec.UNCONSTRAINED` somewhere in it, later tactics may shard it further.
      axis: name of the mesh axis; left out if there are specs only.
      resolve: where a conflict is met, the number of the role that gets the axis; by default the
        role of the dimensions named, if they are in the conflict and in one role of it.

    Raises:
      TacticError: dimensions without an axis.
      SpecError: a spec does not fit a value (when it is applied).

    Example:
      >>> ManualPartition({"batch*": 0}, axis="data").name
      'ManualPartition(batch*: 0 -> data)'
      >>> ManualPartition({"*['w']": PartitionSpec("data", None)}).name
      "ManualPartition(*['w']: P('data', None))"
    """

    patterns: Mapping[str, Dims | PartitionSpec]
    axis: str | None = None
    resolve: int | None = None

    def __post_init__(self) -> None:
        check_dims(self)
        if self.axis is None and len(self._specs) < len(self.patterns):
            raise TacticError(
                "ManualPartition: dimensions need an axis: say axis=..., or a PartitionSpec for "
                "each pattern"
            )

    @property
    def name(self) -> str:
        """Name in reports."""
        requests = ", ".join(f"{pattern}: {dims}" for pattern, dims in self.patterns.items())
        along = "" if self.axis is None else f" -> {self.axis}"
        return f"ManualPartition({requests}{along})"

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it names."""
        own = () if self.axis is None else (self.axis,)
        specs = (axes_of(spec, len(spec), pattern)[0] for pattern, spec in self._specs.items())
        named = (axis for axes in specs for row in axes for axis in row)
        return tuple(dict.fromkeys([*own, *named]))

    @property
    def _specs(self) -> dict[str, PartitionSpec]:
        specs = self.patterns.items()
        return {pattern: spec for pattern, spec in specs if isinstance(spec, PartitionSpec)}

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the named dimensions and propagates the axes from them."""
        mesh = stage.context.mesh
        for name in self.axes:
            mesh.axis(name)
        self._check_specs(stage)
        roles = chosen_roles(stage, self.resolve, self.name)
        outcomes = []
        for axis, patterns in self._by_axis(mesh):
            outcomes.append(place_named(stage, patterns, axis, roles))
            stage = stage.after(outcomes[-1])
        return outcomes[0] if len(outcomes) == 1 else joined(outcomes, stage.assignment)

    def _check_specs(self, stage: Stage) -> None:
        program = stage.context.analysis.program
        for pattern, spec in self._specs.items():
            for name, value in match(program, pattern):
                axes_of(spec, len(program.values[value].type.shape), name)

    def _by_axis(self, mesh: Mesh) -> Iterator[tuple[int, dict[str, Dims | None]]]:
        """Returns the requests of patterns, axis by axis: of several axes of a dimension, the
        outer one comes first."""
        rows = {pattern: axes_of(spec, len(spec), pattern) for pattern, spec in self._specs.items()}
        places = {  # for each pattern and axis: how deep in which dimension
            (pattern, axis): (depth, dim)
            for pattern, (axes, _) in rows.items()
            for dim, row in enumerate(axes)
            for depth, axis in enumerate(row)
        }
        depths = {(depth, axis) for (_, axis), (depth, _) in places.items()}
        kept = {axis for axis in mesh.names if not all(any(row[1]) for row in rows.values())}
        along = {*kept, *([self.axis] if self.axis else [])}
        first = {(0, axis) for axis in along if not any(axis == other for _, other in depths)}
        for depth, axis in sorted(depths | first, key=lambda each: (each[0], mesh.axis(each[1]))):
            lowest = min((d for d, other in depths if other == axis), default=0)
            asked: dict[str, Dims | None] = {}
            for pattern, dims in self.patterns.items():
                if not isinstance(dims, PartitionSpec):
                    asked[pattern] = dims if axis == self.axis and depth == lowest else None
                elif (pattern, axis) in places:
                    own, dim = places[pattern, axis]
                    asked[pattern] = dim if own == depth else None
                else:
                    asked[pattern] = None if any(rows[pattern][1]) else "replicate"
            yield mesh.axis(axis), asked
