"""A plan as the output of a notebook's cell: HTML without scripts or styles of the whole page.

Notebooks may show it trusted or not, light or dark, next to other cells. So colours are translucent
or the notebook's own, styles are set on elements, and pictures are SVG.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.cost.timeline.intervals import COMPUTE, Timeline
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled
from partita.report.collect import collect
from partita.report.data import PlanData
from partita.report.page.markup import Html, join, listing, tag
from partita.text import seconds, show_entries, size

WIDE, LANE = 900, 18
"""Width of the timeline, and height of one of its lanes, in pixels."""

MOST = 12
"""Rows of a table."""

FILLS = {"compute": "#3b78d8", "wait": "#d9822b", "exposed": "#d9822b", "hidden": "#2fa58b"}


def cell(plan: Scheduled, meshes: Sequence[MeshCandidate] = ()) -> str:
    """The main parts of the report."""
    found = collect(plan, meshes)
    return tag(
        "div",
        tag("p", found.decision.text, style="max-width:75ch"),
        _timeline(plan.timeline),
        _columns(_collectives(found), _arguments(found)),
        tag("details", tag("summary", "Tactics"), listing(_tactics(found))),
        tag("p", "plan.report('plan.html') writes the whole report.", style="opacity:.7"),
        style="font-size:14px",
    )


def _timeline(timeline: Timeline) -> Html:
    """Draws the step as a picture; neighbours narrower than a pixel are drawn as one."""
    high = len(timeline.lanes) * (LANE + 4)
    scale = WIDE / timeline.step_time if timeline.step_time else 0.0
    bars: list[Html] = []
    last: tuple[int, str, int] | None = None
    for each in timeline.intervals:
        at = each.lane, each.kind, int(each.start * scale)
        width = max((each.end - each.start) * scale, 0.7)
        if at == last and width < 1:
            continue
        last = at
        place = {"x": f"{each.start * scale:.1f}", "y": each.lane * (LANE + 4)}
        bars.append(tag("rect", **place, width=f"{width:.1f}", height=LANE, fill=FILLS[each.kind]))
    told = ", ".join(
        f"{name} {seconds(timeline.busy(lane, 'compute', 'exposed', 'hidden'))}"
        for lane, name in enumerate(timeline.lanes)
    )
    waits = seconds(timeline.busy(COMPUTE, "wait"))
    drawn = tag(
        "svg",
        *bars,
        viewBox=f"0 0 {WIDE} {high}",
        style="width:100%;max-width:900px",
        role="img",
        aria_label=f"One step of {seconds(timeline.step_time)}: {told}",
    )
    lanes = f"From top to bottom: {told}. Orange is waited for ({waits}), green under compute."
    return join([drawn, tag("p", lanes, style="opacity:.7")])


def _columns(*parts: Html) -> Html:
    return tag("div", *parts, style="display:flex;flex-wrap:wrap;gap:24px;align-items:start")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    heads = (tag("th", column, scope="col", style="text-align:left") for column in columns)
    body = (
        tag("tr", *(tag("td", each, style="text-align:left") for each in row))
        for row in rows[:MOST]
    )
    more = [tag("p", f"and {len(rows) - MOST} more", style="opacity:.7")] * (len(rows) > MOST)
    made = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", tag("b", title), made, *more)


def _collectives(found: PlanData) -> Html:
    rows = [
        (each.kind, ", ".join(each.axes), str(each.count), size(each.bytes), seconds(each.seconds))
        for each in sorted(found.collectives, key=lambda each: -each.seconds)
    ]
    return _table("Collectives", ["kind", "axes", "count", "bytes", "time"], rows)


def _arguments(found: PlanData) -> Html:
    """Lists the arguments, sharded ones first."""
    rows = [
        (f"{each.name} ×{each.count}" if each.count > 1 else each.name, each.type, shown)
        for each in sorted(found.arguments, key=lambda each: not any(each.sharding))
        for shown in [show_entries(each.sharding)]
    ]
    return _table("Arguments", ["argument", "type", "sharding"], rows)


def _tactics(found: PlanData) -> list[str]:
    return [
        f"{each.name}: step {seconds(each.before.step_time)} → {seconds(each.estimate.step_time)}, "
        f"peak {size(each.before.peak_memory)} → {size(each.estimate.peak_memory)}"
        for each in found.history
    ]
