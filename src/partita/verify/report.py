"""A verification as text, and as plain data for `--json`."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from partita.cost.estimate import seconds, size
from partita.mesh import Mesh
from partita.report import WIDTH
from partita.verify.cycles import axes_of
from partita.verify.exchanges import Exchange
from partita.verify.memory import Memory
from partita.verify.rewrites import REWRITES
from partita.verify.verification import Verification


def render(verification: Verification) -> str:
    """The report as plain text."""
    console = Console(width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(view(verification))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def view(verification: Verification) -> RenderableType:
    """The report as something that rich can print."""
    plan, target = verification.plan, verification.topology or "host devices"
    title = f"{plan.program.name} on mesh {plan.mesh}, {verification.form} form, for {target}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    for table in (_collectives(verification), _memory(verification), _time(verification)):
        if table is not None:
            parts += [Text(), table]
    parts += [Text(), *_notes(verification)]
    return Group(*parts)


def summary(verification: Verification) -> dict[str, Any]:
    """What the report shows, as data that JSON can hold. Times in seconds, sizes in bytes."""
    plan, mesh, time = verification.plan, verification.plan.mesh, verification.time
    collectives = verification.collectives
    memory = verification.out_of_memory
    return {
        "program": plan.program.name,
        "mesh": dict(mesh),
        "hardware": plan.hardware.name,
        "topology": verification.topology,
        "form": verification.form,
        "passed": verification.passed,
        "problems": list(verification.problems),
        "collectives": None
        if collectives is None
        else [
            {
                "kind": exchange.kind,
                "group": _group(exchange, mesh),
                "bytes": exchange.bytes,
                "predicted": predicted,
                "compiled": compiled,
            }
            for exchange, predicted, compiled in collectives.rows()
        ],
        "agreement": None if collectives is None else collectives.agreement,
        "rewrites": None if collectives is None else collectives.rewrites,
        "memory": {
            "predicted": _memory_data(verification.predicted_memory),
            "compiled": None if verification.memory is None else _memory_data(verification.memory),
            "capacity": plan.estimate.capacity,
            "fits": plan.estimate.fits,
        },
        "out_of_memory": None
        if memory is None
        else {"message": str(memory), "used": memory.used, "capacity": memory.capacity},
        "time": None
        if time is None
        else {"predicted": _time_data(plan.estimate), "compiled": _time_data(time)},
        "unknown_loops": list(verification.unknown_loops),
        "compile_seconds": verification.seconds,
    }


def _collectives(verification: Verification) -> RenderableType | None:
    comparison, mesh = verification.collectives, verification.plan.mesh
    if comparison is None:
        return None
    rows = comparison.rows()
    if not rows:
        return Text("Collectives: none, predicted or compiled")
    table = _table("Collectives per step", "kind", "group", "bytes", "predicted", "compiled", "")
    for exchange, predicted, compiled in rows:
        remark = comparison.remark(exchange)
        table.add_row(
            exchange.kind,
            _group(exchange, mesh),
            size(exchange.bytes),
            str(predicted),
            str(compiled),
            remark,
            style="yellow" if remark == "differs" else "",
        )
    return table


def _memory(verification: Verification) -> RenderableType:
    table = _table("Memory per device", "what", "predicted", "compiled", "ratio")
    predicted, compiled = verification.predicted_memory, verification.memory
    for name in (*(field.name for field in dataclasses.fields(Memory)), "peak"):
        wanted = getattr(predicted, name)
        if compiled is None:
            table.add_row(name, size(wanted), "-", "-")
        else:
            got = getattr(compiled, name)
            table.add_row(name, size(wanted), size(got), _ratio(wanted, got))
    return table


def _time(verification: Verification) -> RenderableType | None:
    time, estimate = verification.time, verification.estimate
    if time is None:
        return None
    table = _table("Time of a step", "what", "predicted", "by the compiler", "ratio")
    for label, name in (
        ("step time (overlapped)", "step_time"),
        ("serial time", "serial_time"),
        ("  compute", "compute_time"),
        ("  collectives, exposed", "exposed_time"),
        ("  collectives, hidden", "hidden_time"),
    ):
        wanted, got = getattr(estimate, name), getattr(time, name)
        table.add_row(label, seconds(wanted), seconds(got), _ratio(wanted, got))
    return table


def _notes(verification: Verification) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if verification.out_of_memory is not None:
        lines.append(Text(str(verification.out_of_memory), style="red"))
    if verification.widened:
        note = (
            "A host computes bfloat16 in float32; such collectives are told with twice the bytes."
        )
        lines.append(Text(note, style="yellow"))
    if verification.collectives is not None:
        for name, times in verification.collectives.rewrites.items():
            lines.append(Text(f"Rewritten by the compiler, {times} x {name}: {REWRITES[name]}."))
    if verification.unknown_loops:
        names = ", ".join(verification.unknown_loops)
        lines.append(Text(f"Loops of unknown length, counted once: {names}", style="yellow"))
    if verification.seconds is not None:
        lines.append(Text(f"Compiled in {verification.seconds:.1f} s."))
    for problem in verification.problems:
        lines.append(Text(f"DIFFERS: {problem}", style="bold red"))
    if verification.passed:
        lines.append(Text("As predicted." if _as_predicted(verification) else "No failure."))
    return lines


def _as_predicted(verification: Verification) -> bool:
    comparison = verification.collectives
    return comparison is not None and comparison.foreseen == comparison.compiled


def _group(exchange: Exchange, mesh: Mesh) -> str:
    """Who takes part: axes of the mesh, or the number and size of the groups."""
    axes = axes_of(exchange.groups, mesh)
    if axes is not None:
        return ",".join(mesh.axis_names(axes))
    return f"{len(exchange.groups)} of {len(exchange.groups[0])}"


def _ratio(predicted: float, compiled: float) -> str:
    if predicted == compiled:
        return "1.00"
    return f"{predicted / compiled:.2f}" if compiled else "-"


def _memory_data(memory: Memory) -> dict[str, int]:
    return {**dataclasses.asdict(memory), "peak": memory.peak}


def _time_data(time: Any) -> dict[str, float]:
    names = ("step_time", "serial_time", "compute_time", "exposed_time", "hidden_time")
    return {name: getattr(time, name) for name in names}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for column in columns:
        left = column in ("kind", "group", "what", "")
        table.add_column(column, justify="left" if left else "right")
    return table
