"""Fused projections in a report: what it costs to take sharded parts out of one dimension."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from partita.cost import Interconnect
from partita.program.ir import Operation, Program
from partita.program.names import pattern
from partita.spmd import Lowering, Step
from partita.text import seconds, size


@dataclasses.dataclass
class _Cost:
    """Traffic because of one dimension."""

    sizes: dict[int, None] = dataclasses.field(default_factory=dict)
    """Sizes of the parts."""
    parts: int = 0
    """Number of parts, if they are equal and the weight is taken apart; else 0."""
    slices: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    """The sizes of what is sliced out of each value."""
    whole: int = 0
    """Indices of the dimension."""
    bytes: int = 0
    seconds: float = 0.0

    @property
    def is_of_parts(self) -> bool:
        """True if the dimension is taken apart; a single slice only takes something out."""
        several = (sizes for sizes in self.slices.values() if len(sizes) > 1)
        return self.parts > 0 or any(sum(sizes) <= self.whole for sizes in several)


def fused_projections(lowering: Lowering, network: Interconnect) -> tuple[str, ...]:
    """Describes what a step exchanges to shard fused parts of a dimension, and how to save it.

    Args:
      lowering: the program.
      network: that it runs on.

    Returns:
      A line for each dimension of arguments, repeated structure once. A dimension counts if it is
      sharded and devices exchange something where its parts are used.
    """
    program, graph = lowering.graph.program, lowering.graph
    named = _named(lowering)
    found: dict[str, _Cost] = {}
    for op in program.operations:
        for value, dim, part, steps in _used(lowering, op):
            whole = _shape(program, value)[dim]
            name = named.get((graph.values[graph.value_class[value]].colors[dim], whole))
            moved = [step for step in steps if step.is_collective]
            if name is None or not moved:
                continue
            cost, times = found.setdefault(name, _Cost()), program.defined_times(value)
            cost.sizes[part] = None
            cost.parts = max(cost.parts, op.takes_apart * whole // part)
            cost.slices.setdefault(value, []).append(part)
            cost.whole = whole
            cost.bytes += times * sum(step.bytes for step in moved)
            cost.seconds += times * sum(network.seconds(step) for step in moved)
    return tuple(_line(name, cost) for name, cost in found.items() if cost.is_of_parts)


def _named(lowering: Lowering) -> dict[tuple[int, int], str]:
    """The arguments' dimensions by color and size; of several that of the largest argument."""
    program, graph = lowering.graph.program, lowering.graph
    found: dict[tuple[int, int], str] = {}
    arguments = zip(program.argument_names, program.arguments, strict=True)
    for name, value in sorted(arguments, key=lambda each: len(_shape(program, each[1]))):
        for dim, color in enumerate(graph.values[graph.value_class[value]].colors):
            if color >= 0:
                found[color, _shape(program, value)[dim]] = f"{pattern(name)} dim {dim}"
    return found


def _used(lowering: Lowering, op: Operation) -> Iterator[tuple[int, int, int, tuple[Step, ...]]]:
    """Yields operations that use parts of a dimension, with the sizes of these and the traffic."""
    program, graph = lowering.graph.program, lowering.graph
    form = lowering.forms[graph.op_class[op.index]]
    if op.takes_apart:
        sides = ((op.rule.operands[0], op.operands[0]), (op.rule.results[0], op.results[0]))
        plans = [lowering.plans[graph.value_class[value]] for _, value in sides]
        steps = (*dict(plans[0].reshards).get(form.need(0), ()), *plans[1].steps)
        for (tensor, value), (other, _), plan in zip(sides, sides[::-1], plans[::-1], strict=True):
            for dim, factors in enumerate(tensor):
                if len(factors) > 1:
                    axes = plan.layout[next(d for d, f in enumerate(other) if factors[-1] in f)]
                    inner = math.prod(op.rule.factors[f].size for f in factors[1:])
                    yield value, dim, inner, tuple(s for s in steps if set(s.axes) & set(axes))
    elif op.traits.slices and not op.traits.reads_window:
        value, made = op.operands[0], _shape(program, op.results[0])
        plan, need = lowering.plans[graph.value_class[value]], form.need(0)
        for dim, whole in enumerate(_shape(program, value)):
            if 0 < made[dim] < whole and plan.layout[dim]:
                yield value, dim, made[dim], dict(plan.reshards).get(need, ())


def _shape(program: Program, value: int) -> tuple[int, ...]:
    return program.values[value].type.shape


def _line(name: str, cost: _Cost) -> str:
    price = f"{size(cost.bytes)} in {seconds(cost.seconds)} per step"
    if cost.parts:
        (each,) = cost.sizes
        return (
            f"{name} holds {cost.parts} parts of {each} that are used one by one: sharding each "
            f"of them exchanges {price}; as two dimensions {cost.parts} x {each}, the last one "
            "sharded, it would exchange nothing"
        )
    sizes = ", ".join(map(str, cost.sizes))
    return (
        f"{name} holds parts of {sizes} that are used one by one: taking them out exchanges "
        f"{price}; with a weight for each part, sharded by itself, it would exchange nothing"
    )
