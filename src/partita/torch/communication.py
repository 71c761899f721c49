"""The collectives that torch issues, compared with those that a plan predicts.

DTensor decides by itself between the boundaries of modules, so the two need not be equal. What is
known to differ has a rule, and what no rule says is left over.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partita.escape import printed
from partita.program.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from partita.spmd import Collective
from partita.torch.distribution import Distribution
from partita.torch.placements import splits
from partita.torch.repeats import layer_of
from partita.torch.tools import sharded_axis

_NAMES = {
    ALL_GATHER: (
        *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather"),
        *("allgather_", "_allgather_base_"),
    ),
    REDUCE_SCATTER: (
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
        "_reduce_scatter_base_",
    ),
    ALL_REDUCE: ("all_reduce", "all_reduce_coalesced", "allreduce_"),
    ALL_TO_ALL: ("all_to_all_single", "shard_dim_alltoall", "alltoall_"),
}
_KINDS = {name: kind.name for kind, names in _NAMES.items() for name in names}
"""Kinds of partita by torch's names of collectives."""


_GATHERED_CLASSES = (
    "what is split over classes is gathered for the loss, where the plan sums over the devices; "
    "loss_parallel of torch does that, too"
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Known excess of collectives that torch issues over the predicted; negative for fewer."""

    kind: str
    least: int
    most: int
    why: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Collectives by kind: predicted, issued, and what explains the difference."""

    predicted: Mapping[str, int]
    issued: Mapping[str, int]
    reasons: tuple[str, ...]
    left_over: Mapping[str, int]
    """Issued less predicted, as far as no rule says why."""

    @printed
    def __str__(self) -> str:
        kinds = sorted({*self.predicted, *self.issued})
        rows = [
            f"{kind:16} predicted {self.predicted.get(kind, 0):4}"
            f"  issued {self.issued.get(kind, 0):4}"
            for kind in kinds
        ]
        return "\n".join([*rows, *(f"  {reason}" for reason in self.reasons)])


def rules(collectives: Sequence[Collective], plan: Distribution) -> list[Rule]:
    """Returns the known differences in collectives under a plan."""
    sums = [c for c in collectives if c.kind == ALL_REDUCE.name]
    found = [
        Rule(
            ALL_REDUCE.name,
            -1,
            0,
            "a mean over targets divides by how many count, which the plan sums over the devices "
            "and DTensor does not: it takes the mean of equal shards",
        ),
        Rule(
            ALL_REDUCE.name,
            0,
            sum(len(c.axes) - 1 for c in sums),
            "sums over several axes are taken axis by axis",
        ),
        Rule(
            ALL_REDUCE.name,
            -_whole_biases(plan),
            0,
            "a bias that is added before its sums are scattered has a gradient of all of them",
        ),
    ]
    for kind, count in plan.local.over_classes.items():
        found.append(Rule(kind, -count, 0, _GATHERED_CLASSES))
    if plan.local.over_classes:
        found.append(Rule(ALL_GATHER.name, 0, 1, _GATHERED_CLASSES))
    tied = sum(_is_gathered(plan, name) for name in plan.local.tied)
    for kind in (ALL_GATHER.name, REDUCE_SCATTER.name):
        why = "a tied parameter is gathered by each module that reads it"
        found.append(Rule(kind, 0, tied, why))
    return [*found, *_at_once(collectives, plan)]


def _is_gathered(plan: Distribution, name: str) -> bool:
    return name in plan.used and plan.used[name] != plan.parameters[name]


def _whole_biases(plan: Distribution) -> int:
    """Counts the biases of matrices split along their inputs whose outputs are scattered."""
    count = 0
    for path, at in plan.modules.items():
        weight, bias = plan.used.get(f"{path}.weight"), plan.used.get(f"{path}.bias")
        if weight is None or bias is None or len(at.outputs) != 1:
            continue
        for split, other, out in zip(weight, bias, at.outputs[0], strict=True):
            count += splits(split) and split.dim == 1 and splits(out) and not splits(other)
    return count


def _at_once(collectives: Sequence[Collective], plan: Distribution) -> Iterator[Rule]:
    """Yields the effect of `fully_shard`, which moves a group's tensors at once.

    It gathers the parameters of a group together, and reduces and scatters its gradients together.
    """
    axis, _ = sharded_axis(plan)
    if axis is None:
        return
    blocks = plan.local.blocks
    groups = len(blocks) + any(layer_of(name) not in blocks for name in plan.used)
    again = len(blocks) if plan.local.regathers else 0
    single = Counter(c.kind for c in collectives if c.axes == (axis,))
    for kind, count in ((ALL_GATHER.name, groups + again), (REDUCE_SCATTER.name, groups)):
        more = count - single[kind] if single[kind] else 0
        yield Rule(kind, more, more, "fully_shard moves what a block has at once")


def compare(
    collectives: Sequence[Collective], issued: Mapping[Any, int], known: Sequence[Rule]
) -> Comparison:
    """Compares a plan's collectives with those that `CommDebugMode` counted in one step.

    Args:
      collectives: of the plan.
      issued: what `get_comm_counts()` returns.
      known: how the two may differ.
    """
    predicted = Counter(c.kind for c in collectives)
    found: Counter[str] = Counter()
    for name, count in issued.items():
        title = str(name).rpartition(".")[2]
        found[_KINDS.get(title, title)] += count
    reasons: list[str] = []
    left = {}
    for kind in sorted({*predicted, *found}):
        more = found[kind] - predicted[kind]
        apply = [rule for rule in known if rule.kind == kind and (rule.least or rule.most)]
        low, high = sum(rule.least for rule in apply), sum(rule.most for rule in apply)
        if more:
            word, why = "more" if more > 0 else "less", "; ".join(rule.why for rule in apply)
            if why:
                reasons.append(f"{abs(more)} {kind} {word}: {why}")
        if rest := more - min(max(more, low), high):
            left[kind] = rest
            reasons.append(f"{abs(rest)} {kind} {'more' if rest > 0 else 'less'}: not known why")
    return Comparison(dict(predicted), dict(found), tuple(reasons), left)
