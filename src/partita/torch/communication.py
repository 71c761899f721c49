"""The collectives that torch issues, beside those that a plan predicts.

DTensor decides by itself between the boundaries of modules, so the two need not be equal. What is
known to differ has a rule, and what no rule says is left over.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from partita.spmd import Collective

_KINDS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather": "all_gather",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allreduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "alltoall_": "all_to_all",
}
"""What torch calls collectives, and what partita does."""

RULES = (
    (
        "all_reduce",
        1,
        "a mean over targets divides by how many count, which the plan sums over the devices and "
        "DTensor does not: it takes the mean of equal shards",
    ),
)
"""What torch issues less of, by how many at most, and why."""


@dataclasses.dataclass(frozen=True)
class Grouped:
    """The groups of parameters that `fully_shard` gathers at once, and whose gradients it reduces
    and scatters at once."""

    axis: str
    groups: int
    again: int
    """How many it gathers a second time, for the backward."""

    def fewer(self, collectives: Iterable[Collective]) -> dict[str, int]:
        """How many collectives fewer that are than those of single parameters, by kind."""
        single = Counter(c.kind for c in collectives if c.axes == (self.axis,))
        at_once = {"all_gather": self.groups + self.again, "reduce_scatter": self.groups}
        return {kind: single[kind] - count for kind, count in at_once.items() if single[kind]}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Collectives by kind: predicted, issued, and what explains the difference."""

    predicted: Mapping[str, int]
    issued: Mapping[str, int]
    reasons: tuple[str, ...]
    left_over: Mapping[str, int]
    """Issued less predicted, where no rule says why."""

    def __str__(self) -> str:
        kinds = sorted({*self.predicted, *self.issued})
        rows = [
            f"{kind:16} predicted {self.predicted.get(kind, 0):4}"
            f"  issued {self.issued.get(kind, 0):4}"
            for kind in kinds
        ]
        return "\n".join([*rows, *(f"  {reason}" for reason in self.reasons)])


def compare(
    collectives: Iterable[Collective], issued: Mapping[Any, int], grouped: Grouped | None
) -> Comparison:
    """A plan's collectives beside what `CommDebugMode` has counted of one step.

    Args:
      collectives: of the plan.
      issued: what `get_comm_counts()` returns.
      grouped: what `fully_shard` moves at once, if it is used.
    """
    predicted = Counter(c.kind for c in collectives)
    fewer = {} if grouped is None else grouped.fewer(collectives)
    found: Counter[str] = Counter()
    for name, count in issued.items():
        title = str(name).rpartition(".")[2]
        found[_KINDS.get(title, title)] += count
    reasons: list[str] = []
    left = {}
    for kind in sorted({*predicted, *found}):
        more = found[kind] - predicted[kind]
        if fewer.get(kind):
            reasons.append(f"{fewer[kind]} {kind} less: fully_shard moves a block's at once")
            more += fewer[kind]
        for known, most, why in RULES:
            if known == kind and -most <= more < 0:
                reasons.append(f"{-more} {kind} less: {why}")
                more = 0
        if more:
            left[kind] = more
    return Comparison(dict(predicted), dict(found), tuple(reasons), left)
