"""The placements of activations, read from a plan by the names that they have in the program."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping

import torch

from partita.plan import Plan
from partita.torch.boundaries import Boundaries
from partita.torch.capture import Captured
from partita.torch.placements import Placements, placements_of
from partita.torch.repeats import Run


def shared_name(run: Run, name: str) -> str:
    """What a value of a run is called in the program: layers that are traced once share a name."""
    if run.shared is None:
        return name
    return re.sub(r"\d+$", "*", run.layer) + name.removeprefix(run.layer)


def value_placements(plan: Plan, value: int) -> Placements:
    """How a value of the program is kept, outstanding sums included."""
    lowering = plan.spmd.lowering
    kept = lowering.plans[lowering.graph.value_class[value]]
    return placements_of(kept.layout, len(plan.mesh.names), kept.unreduced)


def boundary_placements(
    plan: Plan, runs: list[Run], found: Boundaries, captured: Captured
) -> Mapping[torch.fx.Node, Placements]:
    """How the values at the boundaries of modules are kept.

    A layer that is traced once is in the program as often as it is called, and in that order.
    """
    named: dict[str, deque[int]] = defaultdict(deque)
    for name, value in plan.program.tagged:
        named[name].append(value)
    made: dict[torch.fx.Node, Placements] = {}
    for run in runs:
        for node in run.nodes:
            values = named.get(shared_name(run, found.tags[node])) if node in found.tags else None
            if values:
                made[node] = value_placements(plan, values.popleft())
    inputs = {t.name: at for at, t in captured.inputs.items()}
    for name, value in zip(plan.program.argument_names, plan.program.arguments, strict=True):
        if name in inputs:
            for nodes in found.inputs.values():
                for node in nodes:
                    if node.name == inputs[name]:
                        made[node] = value_placements(plan, value)
    return made
