"""Warns of tactics that make the step slower, or that divide no compute."""

from __future__ import annotations

from partita.cost import Estimate
from partita.mesh import Mesh
from partita.program import Program
from partita.text import seconds
from partita.tiling import Assignment

LEAST = 1e-3
"""A change by less than this share is none."""

DIVIDED = 0.75
"""Largest ratio of compute after to before at which an axis counts as dividing the work."""


def effect(before: Estimate, after: Estimate) -> str:
    """Why what a tactic has sharded may not be worth it; empty if it is.

    Args:
      before: the estimate before the tactic.
      after: the estimate after it.
    """

    def less(name: str) -> bool:
        return bool(getattr(after, name) < getattr(before, name) * (1 - LEAST))

    slower = after.step_time > before.step_time * (1 + LEAST)
    saves = "; it saves memory" if less("peak_memory") else ""
    if slower:
        waiting = (each.exposed_time + each.hidden_time for each in (before, after))
        compute = seconds(before.compute_time), seconds(after.compute_time)
        took = f"compute {' -> '.join(compute)}, collectives {' -> '.join(map(seconds, waiting))}"
        return f"the step is slower: {took}{saves}"
    return "" if less("compute_time") or saves else "divides no compute, and saves no memory"


def ends(program: Program, before: Assignment, after: Assignment, mesh: Mesh) -> str:
    """The first operation that now sums over an axis and whose result is not split along it."""
    for op, old, new in zip(program.operations, before.ops, after.ops, strict=True):
        made = {factor for dims in op.rule.results for dim in dims for factor in dim}
        kept = {axis for factor in made for axis in new[factor]}
        for factor, axes in enumerate(new):
            for axis in axes:
                if axis not in old[factor] and factor not in made and axis not in kept:
                    where = f" at {op.source}" if op.source else ""
                    return f"{mesh.names[axis]} ends at {op.title}{where}"
    return ""
