"""A plan as text: what each tactic did, what the step costs, how every argument is laid out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from partita.mesh import Mesh
from partita.planning.schedule import Scheduled, TacticReport, argument_groups
from partita.text import WIDTH, new_table, seconds, show_entries, size
from partita.tiling import Layout, entries, local_type

MOST_REPLICATED = 8
"""Lines of the user's that a tactic's report shows as requiring replication."""

LARGE = 2**20
"""Bytes of constants from which on a report shows them."""


def view(plan: Scheduled, width: int = WIDTH) -> RenderableType:
    """The report as something that rich can print, for a console of this width."""
    return Group(
        Text(
            f"{plan.program.name} on mesh {plan.mesh} ({plan.mesh.devices} x {plan.hardware.name})",
            style="bold",
        ),
        Text(),
        _colors(plan),
        Text(),
        _history(plan),
        Text(),
        _costs(plan),
        Text(),
        _collectives(plan),
        Text(),
        _arguments(plan, width),
        *_constants(plan),
        *_warnings(plan),
    )


def _colors(plan: Scheduled) -> RenderableType:
    table = new_table("Colors", "color", "size", "alike", "seen in")
    for info in plan.colors.colors:
        seen = ", ".join(info.examples[:2]) or "only inside the program"
        more = f" and {len(info.examples) - 2} more" if len(info.examples) > 2 else ""
        table.add_row(str(info.group), str(info.size), str(info.count), seen + more)
    lines: list[RenderableType] = [table]
    for conflict in plan.colors.conflicts:
        times = f" ({conflict.count} times alike)" if conflict.count > 1 else ""
        lines.append(Text(f"  conflict of color {conflict.color} with itself{times}:"))
        lines += [Text(f"    role {i}: {role}") for i, role in enumerate(conflict.roles)]
    return Group(*lines)


def _history(plan: Scheduled) -> RenderableType:
    tree = Tree("Tactics")
    for entry in plan.history:
        branch = tree.add(Text(entry.name))
        _add_tactic(branch, entry)
    if not plan.history:
        tree.add("none: everything is replicated")
    return tree


def _add_tactic(branch: Tree, entry: TacticReport) -> None:
    for decision in entry.decisions:
        branch.add(Text(f"chose {decision}"))
    for label, tiled in entry.tiled.items():
        branch.add(Text(f"tiled {label} {show_entries(tiled)}"))
    if not entry.tiled:
        branch.add(Text("tiled no argument"))
    for number, refusal in enumerate(entry.refused):
        line = branch.add(Text(f"refused {refusal}", style="yellow"))
        later = entry.refused[number + 1 :]
        if all(other.alternatives != refusal.alternatives for other in later):
            for way in refusal.alternatives:
                line.add(Text(f"or {way}"))
    for blocked in entry.blocked:
        branch.add(Text(f"stopped {blocked}"))
    for conflict in entry.resolved:
        branch.add(Text(f"resolved {conflict}"))
    for conflict in entry.conflicts:
        branch.add(Text(f"conflict {conflict}", style="yellow"))
    for warning in entry.warnings:
        branch.add(Text(f"warning {warning}", style="yellow"))
    largest = sorted(entry.whole, key=lambda use: -use.bytes)
    for use in largest[:MOST_REPLICATED]:
        branch.add(Text(f"replicated {use}", style="yellow"))
    if len(largest) > MOST_REPLICATED:
        rest = sum(use.bytes for use in largest[MOST_REPLICATED:])
        more = f"replicated: {len(largest) - MOST_REPLICATED} more lines gather {size(rest)}"
        branch.add(Text(more, style="yellow"))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(entry.collectives.items()))
    before, now = entry.before, entry.estimate
    branch.add(
        Text(
            f"step {seconds(before.step_time)} -> {seconds(now.step_time)}, "
            f"peak {size(before.peak_memory)} -> {size(now.peak_memory)}, "
            f"{kinds or 'no collectives'}"
        )
    )


def _costs(plan: Scheduled) -> RenderableType:
    estimate = plan.estimate
    table = new_table("Cost of a step, per device", "what", "predicted")
    table.add_row("step time (overlapped)", seconds(estimate.step_time))
    table.add_row("serial time", seconds(estimate.serial_time))
    table.add_row("  compute", seconds(estimate.compute_time))
    table.add_row("  collectives, exposed", seconds(estimate.exposed_time))
    table.add_row("  collectives, hidden", seconds(estimate.hidden_time))
    table.add_row("peak memory", size(estimate.peak_memory))
    table.add_row("  of which arguments", size(estimate.argument_memory))
    if _worth_showing(plan):
        table.add_row("  of which constants", size(estimate.constant_memory))
    fits = "yes" if estimate.fits else "NO"
    table.add_row("fits", f"{fits}, capacity {size(estimate.capacity)}")
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


def _arguments(plan: Scheduled, width: int) -> RenderableType:
    columns = ["argument", "type", "sharding"] + (["piece per device"] if width >= 100 else [])
    table = new_table("Arguments", *columns)
    program, layouts = plan.program, plan.spmd.argument_layouts
    for label, numbers in argument_groups(program, layouts).items():
        type_ = program.values[program.arguments[numbers[0]]].type
        layout = layouts[numbers[0]]
        times = f" x{len(numbers)}" if len(numbers) > 1 else ""
        row = [label + times, str(type_), show_layout(layout, plan.mesh)]
        piece = str(local_type(type_, layout, plan.mesh))
        table.add_row(*row, *[piece][: len(columns) - len(row)])
    return table


def _worth_showing(plan: Scheduled) -> bool:
    return plan.estimate.constant_memory >= LARGE


def _constants(plan: Scheduled) -> list[RenderableType]:
    """The constants that every device has whole, if they are many bytes."""
    if not _worth_showing(plan):
        return []
    table = new_table("Constants, whole on every device", "constant", "type", "bytes", "used by")
    whole = [c for c in plan.program.constants if not c.lifted]
    shown = [c for c in whole if c.bytes >= LARGE // 16]
    for constant in shown:
        more = f" and {len(constant.used) - 1} more" if len(constant.used) > 1 else ""
        first = (*constant.used, "a result")[0]
        table.add_row(constant.name, str(constant.type), size(constant.bytes), first + more)
    rest = [constant.bytes for constant in whole[len(shown) :]]
    if rest:
        table.add_row(f"{len(rest)} smaller", "", size(sum(rest)), "")
    hint = "lift_constants=True makes them arguments, which can be split."
    return [Text(), table, Text(hint, style="yellow")]


def _warnings(plan: Scheduled) -> list[RenderableType]:
    lines: list[RenderableType] = []
    estimate = plan.estimate
    if not estimate.fits:
        lines.append(
            Text(
                f"\nDOES NOT FIT: predicted peak {size(estimate.peak_memory)} of "
                f"{size(estimate.capacity)} per device.",
                style="bold red",
            )
        )
    opaque: dict[str, int] = {}
    for op in plan.program.operations:
        if not op.rule.known:
            where = f"{op.title} at {op.source}"
            opaque[where] = opaque.get(where, 0) + 1
    unknown = [loop.source for loop in plan.program.loops if loop.trips is None]
    if unknown:
        text = "\nLoops whose trip count is not known; they are priced as running once:"
        lines.append(Text(text, style="yellow"))
        lines += [Text(f"  {source}") for source in dict.fromkeys(unknown)]
    if opaque:
        lines.append(Text("\nReplicated, for lack of a sharding rule:", style="yellow"))
        lines += [Text(f"  {where}" + (f" x{n}" if n > 1 else "")) for where, n in opaque.items()]
    return lines


def show_layout(layout: Layout, mesh: Mesh) -> str:
    """A layout for people: `(data, -, model)`, or `replicated`."""
    return show_entries(entries(layout, mesh))
