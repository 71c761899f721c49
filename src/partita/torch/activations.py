"""The placements of activations, read from a plan by the names that they have in the program."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping

import torch

from partita.plan import Plan
from partita.torch.boundaries import Boundaries
from partita.torch.capture import Captured
from partita.torch.repeats import Run


def shared_name(run: Run, name: str) -> str:
    """Returns a value's name in the program; layers that are traced once share a name."""
    if run.shared is None:
        return name
    return re.sub(r"\d+$", "*", run.layer) + name.removeprefix(run.layer)


def boundary_values(
    plan: Plan, runs: list[Run], found: Boundaries, captured: Captured
) -> dict[torch.fx.Node, int]:
    """The values of the program at the boundaries of modules.

    A layer that is traced once is in the program as often as it is called, and in that order.
    """
    named: dict[str, deque[int]] = defaultdict(deque)
    for name, value in plan.program.tagged:
        named[name].append(value)
    made: dict[torch.fx.Node, int] = {}
    for run in runs:
        for node in run.nodes:
            values = named.get(shared_name(run, found.tags[node])) if node in found.tags else None
            if values:
                made[node] = values.popleft()
    arguments = dict(zip(plan.program.argument_names, plan.program.arguments, strict=True))
    inputs: Mapping[str, int] = {at: arguments[t.name] for at, t in captured.inputs.items()}
    for nodes in found.inputs.values():
        made |= {node: inputs[node.name] for node in nodes if node.name in inputs}
    return made


def scopes(runs: list[Run]) -> dict[str, str]:
    """The layers that are traced once, with what their paths are called in the program."""
    return {run.layer: shared_name(run, run.layer) for run in runs if run.layer}
