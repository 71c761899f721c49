"""Plan as text: the result first, then its parts, then its history.

The result comes first (time, memory, idle axes), then the candidate meshes, collectives, arguments,
constants, and notes on the program. The history of tactics and the colors follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled, argument_groups
from partita.report import notes
from partita.report.history import history
from partita.report.meshes import table
from partita.text import Table, Text, new_table, seconds, show_entries, size, times
from partita.tiling import entries, local_type

if TYPE_CHECKING:
    from partita.verify.compiled_shardings import AsCompiled

NARROW = 100
"""Columns of a terminal below which the shards of arguments are left out."""


def view(
    plan: Scheduled,
    width: int | None = None,
    meshes: Sequence[MeshCandidate] = (),
    compiled: AsCompiled | None = None,
) -> RenderableType:
    """The report as something that rich can print.

    Args:
      plan: what to report.
      width: columns of the terminal that it is for, if it is for one.
      meshes: those that were planned to choose that of the plan.
      compiled: what XLA compiles from the shardings that were given, if that was asked.
    """
    title = f"{plan.program.name} on mesh {plan.mesh} ({plan.mesh.devices} x {plan.hardware.name})"
    parts = [
        _result(plan),
        *([table(meshes)] if meshes else []),
        _collectives(plan),
        *([] if compiled is None else [compiled.view()]),
        _arguments(plan, width),
        *notes.constants(plan),
        *notes.notes(plan),
        history(plan),
        _colors(plan),
    ]
    apart = (each for part in parts for each in (Text(), part))
    return Group(Text(title, style="bold"), *apart)


def _result(plan: Scheduled) -> RenderableType:
    e = plan.estimate
    table = Table(box=None, pad_edge=False, show_header=False)
    for overflow in ("ellipsis", "ellipsis", "fold"):
        table.add_column(overflow=overflow)
    moves = "collectives and host" if e.offloaded.count else "collectives"
    time = (
        f"compute {seconds(e.compute_time)}, {moves} {seconds(e.exposed_time)} exposed and "
        f"{seconds(e.hidden_time)} hidden; serial {seconds(e.serial_time)}"
    )
    table.add_row("step time", seconds(e.step_time), time)
    parts = f"arguments {size(e.argument_memory)}"
    if notes.constants_are_large(plan):
        parts += f", constants {size(e.constant_memory)}"
    fits, style = ("fits", "") if e.fits else ("DOES NOT FIT", "bold red")
    memory = Text.assemble("of ", size(e.capacity), ": ", (fits, style), f"; {parts}")
    table.add_row("peak memory", size(e.peak_memory), memory)
    for entry in plan.history:
        if entry.context is not None:
            table.add_row("  with", entry.name, "; ".join(entry.decisions))
    if plan.most_memory > e.peak_memory:
        table.add_row("  at the most", size(plan.most_memory), _at_the_most(plan))
    if e.host_memory or e.offloaded.count:
        moved = (
            f"moved {e.offloaded.count} times, {size(e.offloaded.bytes)} in "
            f"{seconds(e.offloaded.seconds)}"
        )
        table.add_row("host memory", size(e.host_memory), moved)
    for idle in plan.idle_axes:
        table.add_row("idle axis", idle.name, idle.effect, style="yellow")
    if not plan.idle_axes:
        table.add_row("idle axes", "none", "")
    return table


def _at_the_most(plan: Scheduled) -> Text:
    """Why it may be more, and whether that still fits."""
    if plan.most_memory <= plan.estimate.capacity or not plan.estimate.fits:
        return Text("if the compiler's scheduler keeps alive what it may, to overlap collectives")
    return Text(
        "MAY NOT FIT if the compiler's scheduler keeps alive what it may, to overlap collectives; "
        "compiler_options={'xla_gpu_enable_analytical_sol_latency_estimator': False} forbids it",
        style="yellow",
    )


def _collectives(plan: Scheduled) -> RenderableType:
    traffic, combined = plan.estimate.traffic, plan.combined
    if not traffic:
        return Text("Collectives: none")
    fewer = any(traffic[key].count > found.count for key, found in combined.items())
    columns = ["kind", "axes", "count", "bytes per device", "time"]
    table = new_table("Collectives", *columns, *(["combined", "time combined"] if fewer else []))
    for (kind, axes), found in sorted(traffic.items()):
        row = [kind, ", ".join(axes), str(found.count), size(found.bytes), seconds(found.seconds)]
        together = combined.get((kind, axes))
        if fewer and together is not None:
            row += [str(together.count), seconds(together.seconds)]
        table.add_row(*row)
    if not fewer:
        return table
    kinds = ", ".join(f"{kind}s" for kind in plan.hardware.combined)
    limit = size(plan.hardware.combine.value)
    note = f"The compiler combines {kinds}, up to {limit}; the step time counts on it."
    return Group(table, Text(note))


def _arguments(plan: Scheduled, width: int | None) -> RenderableType:
    shards = width is None or width >= NARROW
    columns = ["argument", "type", "sharding", *(["shard per device"] if shards else [])]
    table = new_table("Arguments", *columns)
    program, layouts = plan.program, plan.spmd.argument_layouts
    for label, numbers in argument_groups(program, layouts).items():
        type_ = program.values[program.arguments[numbers[0]]].type
        layout = layouts[numbers[0]]
        row = [label + times(len(numbers)), str(type_), show_entries(entries(layout, plan.mesh))]
        table.add_row(*row, *([str(local_type(type_, layout, plan.mesh))] if shards else []))
    return table


def _colors(plan: Scheduled) -> RenderableType:
    table = new_table("Colors", "color", "size", "seen in")
    for info in plan.colors.colors:
        seen = ", ".join(info.examples[:2]) or "only inside the program"
        more = f" and {len(info.examples) - 2} more" if len(info.examples) > 2 else ""
        table.add_row(str(info.group), str(info.size) + times(info.count), seen + more)
    lines: list[RenderableType] = [table]
    for conflict in plan.colors.conflicts:
        lines.append(
            Text(f"  conflict of color {conflict.color} with itself{times(conflict.count)}:")
        )
        lines += [Text(f"    role {i}: {role}") for i, role in enumerate(conflict.roles)]
    return Group(*lines)
