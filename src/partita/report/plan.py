"""A plan as text: the result first, then what it is made of, then how it came about.

Result (time, memory, idle axes), collectives, arguments, constants, what to know of the program;
then the history of tactics, and the colors.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partita.mesh import Mesh
from partita.planning.schedule import Scheduled, argument_groups
from partita.report.history import history
from partita.text import new_table, seconds, show_entries, size, times
from partita.tiling import Layout, entries, local_type

LARGE = 2**16
"""Bytes from which on a report shows constants, all together and each by itself."""

NARROW = 100
"""Columns of a terminal below which the shards of arguments are left out."""


def view(plan: Scheduled, width: int | None = None) -> RenderableType:
    """The report as something that rich can print.

    Args:
      plan: what to report.
      width: columns of the terminal that it is for, if it is for one.
    """
    title = f"{plan.program.name} on mesh {plan.mesh} ({plan.mesh.devices} x {plan.hardware.name})"
    parts = [
        _result(plan),
        _collectives(plan),
        _arguments(plan, width),
        *_constants(plan),
        *_notes(plan),
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
    time = (
        f"compute {seconds(e.compute_time)}, collectives {seconds(e.exposed_time)} exposed and "
        f"{seconds(e.hidden_time)} hidden; serial {seconds(e.serial_time)}"
    )
    table.add_row("step time", seconds(e.step_time), time)
    parts = f"arguments {size(e.argument_memory)}"
    if _worth_showing(plan):
        parts += f", constants {size(e.constant_memory)}"
    fits, style = ("fits", "") if e.fits else ("DOES NOT FIT", "bold red")
    memory = Text.assemble("of ", size(e.capacity), ": ", (fits, style), f"; {parts}")
    table.add_row("peak memory", size(e.peak_memory), memory)
    for idle in plan.idle_axes:
        table.add_row("idle axis", idle.name, idle.effect, style="yellow")
    if not plan.idle_axes:
        table.add_row("idle axes", "none", "")
    return table


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
    limit = size(plan.hardware.combine.value)
    note = f"A compiler may combine all_reduces, up to {limit}; predicted times do not count on it."
    return Group(table, Text(note))


def _arguments(plan: Scheduled, width: int | None) -> RenderableType:
    shards = width is None or width >= NARROW
    columns = ["argument", "type", "sharding", *(["shard per device"] if shards else [])]
    table = new_table("Arguments", *columns)
    program, layouts = plan.program, plan.spmd.argument_layouts
    for label, numbers in argument_groups(program, layouts).items():
        type_ = program.values[program.arguments[numbers[0]]].type
        layout = layouts[numbers[0]]
        row = [label + times(len(numbers)), str(type_), show_layout(layout, plan.mesh)]
        table.add_row(*row, *([str(local_type(type_, layout, plan.mesh))] if shards else []))
    return table


def _worth_showing(plan: Scheduled) -> bool:
    return plan.estimate.constant_memory >= LARGE


def _constants(plan: Scheduled) -> Iterator[RenderableType]:
    """The constants that are replicated on every device, if they are many bytes."""
    if not _worth_showing(plan):
        return
    replicated = [c for c in plan.program.constants if not c.hoisted]
    title = f"Constants, replicated: {size(plan.estimate.constant_memory)} in all"
    table = new_table(title, "constant", "type", "bytes", "used by")
    shown = [c for c in replicated if c.bytes >= LARGE]
    for constant in shown:
        more = f" and {len(constant.used) - 1} more" if len(constant.used) > 1 else ""
        first = (*constant.used, "a result")[0]
        table.add_row(constant.name, str(constant.type), size(constant.bytes), first + more)
    rest = [constant.bytes for constant in replicated[len(shown) :]]
    if rest:
        table.add_row(f"{len(rest)} smaller", "", size(sum(rest)), "")
    hint = "hoist_constants=True makes them arguments, which can be sharded."
    yield Group(table, Text(hint, style="yellow"))


def _notes(plan: Scheduled) -> Iterator[RenderableType]:
    """What the program has that a plan can do little about."""
    opaque: dict[str, int] = {}
    for op in plan.program.operations:
        if not op.rule.known:
            where = f"{op.title} at {op.source}"
            opaque[where] = opaque.get(where, 0) + 1
    unknown = [loop.source for loop in plan.program.loops if loop.trips is None]
    if unknown:
        text = "Loops whose trip count is not known; their cost is that of running once:"
        lines = (Text(f"  {source}") for source in dict.fromkeys(unknown))
        yield Group(Text(text, style="yellow"), *lines)
    if opaque:
        lines = (Text(f"  {where}{times(count)}") for where, count in opaque.items())
        yield Group(Text("Replicated, for lack of a sharding rule:", style="yellow"), *lines)


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


def show_layout(layout: Layout, mesh: Mesh) -> str:
    """A layout for people: `(data, -, model)`, or `replicated`."""
    return show_entries(entries(layout, mesh))
