"""`ExpertParallel`: every device has some of the experts of a mixture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.decisions import Request, Stage
from partita.errors import TacticError
from partita.program.names import pattern
from partita.tactics.options import check
from partita.tactics.parts import Patterns, arguments, learned, matched
from partita.tactics.placement import place, place_named
from partita.tactics.products import dims_for
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class ExpertParallel:
    """Shards the experts along an axis, and the work that they do.

    Args:
      axis: name of the mesh axis.
      patterns: the weights of the experts, each sharded in the dimension that it shares with the
        tokens in the product that it goes into; or a dict with dimensions, as `ManualPartition`
        takes it. By default all parameters that have such a dimension.

    Example:
      >>> ExpertParallel().name
      'ExpertParallel(expert)'
    """

    axis: str = "expert"
    patterns: Patterns | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"ExpertParallel({self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Finds the experts, seeds their dimension and propagates the axis from there."""
        axis = stage.context.mesh.axis(self.axis)
        if isinstance(self.patterns, Mapping):
            return place_named(stage, self.patterns, axis)
        requests = experts(self, stage)
        said = (f"{pattern(request.name)} dim {request.dims[0]} as experts" for request in requests)
        return dataclasses.replace(
            place(stage, requests, axis), decisions=tuple(dict.fromkeys(said))
        )


def experts(tactic: ExpertParallel, stage: Stage) -> list[Request]:
    """A request for the dimension of every weight that counts experts."""
    program = stage.context.analysis.program
    patterns = tactic.patterns
    named = learned(program) if patterns is None else matched(program, patterns)
    requests = [
        Request(name, value, (dim,))
        for name, value in named
        for dim in list(dims_for(stage.context.analysis, value, "shared"))[:1]
    ]
    if not requests:
        raise TacticError(
            f"{tactic.name}: no parameter of {program.name} has a dimension that it shares with "
            "tokens in a product, as those of experts have; say which dimension counts the "
            f"""experts, as in patterns={{"*['experts']*": 0}}. {arguments(program)}"""
        )
    return requests
