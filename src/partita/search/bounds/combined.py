"""Upper bound on the latency of reductions that combining may save, over all plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from partita.cost import CostModel
from partita.program.op_traits import CARRY
from partita.search.bounds.choices import Choices


def latency_saved(choices: Choices, model: CostModel) -> list[float]:
    """Returns the largest share of latency that combining may save, for the sums of each class.

    A value that is made unreduced is reduced once. So a place has at most as many reductions as
    there are values that may be made unreduced and be reduced at that place. Of those that are
    combined into one, one latency is left.
    """
    graph, program = choices.graph, choices.graph.program
    begun: list[frozenset[int]] = []
    """Values that the outstanding sums of each value may come from."""
    there: defaultdict[Hashable, set[int]] = defaultdict(set)
    for value in program.values:
        own = set[int]()
        if value.producer is not None:
            op = program.operations[value.producer]
            if op.kind == CARRY or any(factor.kind == "reduction" for factor in op.rule.factors):
                own.add(value.index)
            if op.kind != CARRY:
                for v in op.operands:
                    if choices.may_stay(graph.values[graph.value_class[v]]):
                        own |= begun[v]
        begun.append(frozenset(own))
        if own:
            there[model.combining.of_sum(value.index)] |= own
    found = []
    for each in graph.values:
        places = [model.combining.of_sum(member) for member in each.members]
        runs = sum(place.times for place in places)
        saved = sum(place.times * (1 - 1 / max(len(there[place]), 1)) for place in places)
        found.append(saved / runs if runs else 0.0)
    return found
