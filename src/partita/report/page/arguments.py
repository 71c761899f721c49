"""Arguments with their shardings, drawn as grids; repeated layers are drawn once."""

from __future__ import annotations

from partita.report.data import ArgumentData, PlanData, named
from partita.report.page.markup import (
    Html,
    grid,
    join,
    search_box,
    table,
    tag,
)
from partita.text import show_entries, size

_ORDER = {"inputs": 0, "parameters": 1, "optimizer state": 2}


def arguments(plan: PlanData) -> Html:
    """The table of arguments, which can be searched and filtered by purpose and axis."""
    order = sorted(plan.arguments, key=lambda each: _ORDER.get(each.purpose, 0))
    rows = [_row(each, plan.mesh) for each in order]
    purposes = list(dict.fromkeys(each.purpose for each in order if each.purpose))
    used = {axis for a in plan.arguments for entry in a.sharding for axis in named(entry)}
    filters = [
        _choice("arguments-purpose", "Any purpose", purposes),
        _choice("arguments-axis", "Any axis", [*(a for a in plan.mesh if a in used), "replicated"]),
    ]
    told = (
        "The array cut into the shards of all devices; coloured is what the first device has. "
        "Arguments of repeated layers that are sharded alike are one line."
    )
    columns = ["argument", "type", "sharding", "shard of a device", "bytes per device#"]
    return join(
        [
            tag("p", told, class_="note"),
            search_box("arguments-filter", "Search: name, type, sharding", *filters),
            table("Arguments", columns, rows, class_="stack", id="argument-rows"),
        ]
    )


def _row(each: ArgumentData, mesh: dict[str, int]) -> tuple[object, ...]:
    times = f" ×{each.count}" if each.count > 1 else ""
    name = [tag("span", each.name, class_="mono"), tag("b", times)]
    if each.purpose:
        name += [Html(" "), tag("span", each.purpose, class_="tag")]
    drawn = [grid(each.shape, each.sharding, mesh), tag("span", show_entries(each.sharding))]
    return (
        join(name),
        tag("span", each.type, class_="mono"),
        tag("div", *drawn, class_="beside"),
        tag("span", "×".join(map(str, each.shard)) or "scalar", class_="mono"),
        size(each.bytes * each.count),
    )


def _choice(name: str, label: str, values: list[str]) -> Html:
    """Returns a drop-down list; its first entry selects all."""
    first = tag("option", label, value="")
    return tag("select", first, *(tag("option", v) for v in values), id=name, aria_label=label)
