"""Axes along which each device computes the forward of a module on its own part of the batch.

`fully_shard` hands the module plain local tensors, so that along its axis nothing but parameters
and their gradients may be moved. That is read from the lowering: what depends on the inputs is
moved by no collective along such an axis, except for sums that the loss takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from partita.plan import Plan
from partita.program.ir import Program
from partita.torch.interpret import LOSS
from partita.torch.uses import BACKWARD


def moved(plan: Plan) -> dict[str, str]:
    """Axes along which the forward moves what depends on its inputs, each with the first such
    collective in words."""
    program, found = plan.program, dict[str, str]()
    depends = _dependent(program)
    for step, collective in zip(plan.spmd.collective_steps, plan.collectives, strict=False):
        value = plan.spmd.buffers[step.input].value
        if value not in depends or _is_of_backward_or_loss(program, value):
            continue
        for axis in collective.axes:
            found.setdefault(axis, f"{collective.kind} of {collective.value}")
    for collective in plan.collectives[len(plan.spmd.collective_steps) :]:
        for axis in collective.axes:
            found.setdefault(axis, f"{collective.kind} {collective.value}")
    return found


def of_loss(plan: Plan, axes: Collection[str]) -> dict[str, int]:
    """Counts the collectives of the loss, by kind, that run over a single one of some axes."""
    found: Counter[str] = Counter()
    for step, collective in zip(plan.spmd.collective_steps, plan.collectives, strict=False):
        value = plan.spmd.buffers[step.input].value
        producer = plan.program.values[value].producer
        if producer is not None and len(collective.axes) == 1 and collective.axes[0] in axes:
            found[collective.kind] += _is_of_loss(plan.program.operations[producer].scope)
    return dict(found)


def _dependent(program: Program) -> set[int]:
    """The values that depend on the inputs; what loops carry counts as such."""
    given = set(program.arguments)
    inputs = program.roles.examples if program.roles else given
    made = {value for op in program.operations for value in op.results}
    found = {value for value in range(len(program.values)) if value not in made | given} | inputs
    for op in program.operations:
        if not found.isdisjoint(op.operands):
            found.update(op.results)
    return found


def _is_of_backward_or_loss(program: Program, value: int) -> bool:
    producer = program.values[value].producer
    if producer is None:
        return False
    scope = program.operations[producer].scope
    return BACKWARD in scope or _is_of_loss(scope)


def _is_of_loss(scope: str) -> bool:
    return f"({LOSS})" in scope or f"/{LOSS}/" in scope
