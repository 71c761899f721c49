"""Tables that compare predicted with compiled figures, and the same as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import RenderableType

from partita.cost.estimate import StepTime
from partita.mesh import Mesh
from partita.text import Text, new_table, seconds, size
from partita.verify.collectives import HloCollective
from partita.verify.comparison import Comparison
from partita.verify.cycles import axes_of
from partita.verify.memory import Memory


def collectives(comparison: Comparison, mesh: Mesh) -> RenderableType:
    """Collectives predicted and compiled, by kind, group and size."""
    rows = comparison.rows()
    if not rows:
        return Text("Collectives: none, predicted or compiled")
    table = new_table("Collectives per step", "kind", "group", "bytes", "predicted", "compiled", "")
    for collective, predicted, compiled in rows:
        remark = comparison.remark(collective)
        table.add_row(
            collective.kind,
            group_of(collective, mesh),
            size(collective.bytes),
            str(predicted),
            str(compiled),
            remark,
            style="yellow" if remark == "differs" else "",
        )
    return table


def collectives_data(comparison: Comparison, mesh: Mesh) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "kind": collective.kind,
            "group": group_of(collective, mesh),
            "bytes": collective.bytes,
            "predicted": predicted,
            "compiled": compiled,
        }
        for collective, predicted, compiled in comparison.rows()
    ]


def memory(predicted: Memory, compiled: Memory | None) -> RenderableType:
    """Memory predicted and compiled; the latter is missing if the program did not fit."""
    table = new_table("Memory per device", "what", "predicted", "compiled", "ratio")
    for name in (*(field.name for field in dataclasses.fields(Memory)), "peak"):
        wanted = getattr(predicted, name)
        if compiled is None:
            table.add_row(name, size(wanted), "-", "-")
        else:
            got = getattr(compiled, name)
            table.add_row(name, size(wanted), size(got), _ratio(wanted, got))
    return table


def memory_data(found: Memory) -> dict[str, int]:
    """Memory as plain data."""
    return {**dataclasses.asdict(found), "peak": found.peak}


def time(estimate: StepTime, found: StepTime) -> RenderableType:
    """Time predicted, and by the compiler's own estimate."""
    table = new_table("Time of a step", "what", "predicted", "by the compiler", "ratio")
    for label, name in (
        ("step time (overlapped)", "step_time"),
        ("serial time", "serial_time"),
        ("  compute", "compute_time"),
        ("  collectives, exposed", "exposed_time"),
        ("  collectives, hidden", "hidden_time"),
    ):
        wanted, got = getattr(estimate, name), getattr(found, name)
        table.add_row(label, seconds(wanted), seconds(got), _ratio(wanted, got))
    return table


def time_data(found: StepTime) -> dict[str, float]:
    """Times as plain data."""
    names = ("step_time", "serial_time", "compute_time", "exposed_time", "hidden_time")
    return {name: getattr(found, name) for name in names}


def group_of(collective: HloCollective, mesh: Mesh) -> str:
    """Who takes part: axes of the mesh, or the number and size of the groups."""
    axes = axes_of(collective.groups, mesh)
    if axes is not None:
        return ",".join(mesh.axis_names(axes))
    return f"{len(collective.groups)} of {len(collective.groups[0])}"


def _ratio(predicted: float, compiled: float) -> str:
    if predicted == compiled:
        return "1.00"
    return f"{predicted / compiled:.2f}" if compiled else "-"
