"""How much of the latency of sums combining may save at most, whatever the plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from partita.cost import CostModel
from partita.program.op_traits import CARRY
from partita.search.bounds.choices import Choices


def latency_saved(choices: Choices, model: CostModel) -> list[float]:
    """For every value class, the largest share of the latency of its sums.

    What is made unreduced somewhere is reduced once. So there are no more sums at one place than
    values that may be made unreduced there by themselves and reduced at that place; of those that
    become one, one latency is left.
    """
    graph, program = choices.graph, choices.graph.program
    begun: list[frozenset[int]] = []
    """For every value, those of which the sums that it has outstanding may be."""
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
