"""The sections of a page: what each says in words and tables. Charts are drawn into them later.

Everything that a picture shows is in a table as well, for readers who cannot see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from partita.report.data import DetailsData, EstimateData, MoveData, PlanData, TacticData
from partita.report.page.arguments import arguments
from partita.report.page.markup import (
    Html,
    bar,
    join,
    listing,
    search_box,
    table,
    tag,
)
from partita.report.page.searches import searches
from partita.report.page.verified import verified
from partita.text import seconds, show_entries, size

LONGEST = 20
"""Number of operations and collectives in the timeline's table."""


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page, with its entry in the navigation."""

    anchor: str
    title: str
    body: Html

    def __html__(self) -> Html:
        """Returns the section as an HTML element."""
        heading = tag("h2", self.title, id=f"{self.anchor}-title")
        return tag(
            "section", heading, self.body, id=self.anchor, aria_labelledby=f"{self.anchor}-title"
        )


def sections(plan: PlanData) -> list[Section]:
    """The sections that a plan has something to say in, in order."""
    made: list[tuple[str, str, Callable[[PlanData], Html]]] = [
        ("timeline", "One step in time", _timeline),
        ("memory", "Memory over the step", _memory),
        ("collectives", "Collectives", _collectives),
        ("arguments", "Arguments", arguments),
        ("tactics", "Tactics", _tactics),
        ("conflicts", "Conflicts", _conflicts),
        ("refused", "Refused", _refused),
        ("search", "Search", searches),
        ("meshes", "Meshes", _meshes),
        ("compiled", "Compiled", verified),
        ("notes", "Notes", _notes),
    ]
    found = ((anchor, title, make(plan)) for anchor, title, make in made)
    return [Section(anchor, title, body) for anchor, title, body in found if body]


def summary(plan: PlanData) -> Html:
    """The decision in a paragraph, then its figures."""
    e = plan.estimate
    fits = tag("em", "fits" if e.fits else "does not fit", class_="good" if e.fits else "bad")
    idle = ", ".join(each["name"] for each in plan.idle_axes) or "none"
    devices = " × ".join(f"{axis} {size_}" for axis, size_ in plan.mesh.items())
    tiles = [
        (seconds(e.step_time), f"a step; {seconds(e.serial_time)} if nothing overlapped"),
        (size(e.peak_memory), join(["of ", size(e.capacity), " at the peak: ", fits])),
        (seconds(e.exposed_time), "compute waits for collectives"),
        (seconds(e.hidden_time), "of collectives under compute"),
        (devices, f"the mesh, of {plan.hardware}"),
        (idle, "idle axes"),
    ]
    return join(
        [
            tag("h1", f"{plan.program} on {plan.hardware}"),
            tag("p", plan.decision.text, class_="lead", id="decision"),
            listing(plan.decision.strategy) if len(plan.decision.strategy) > 1 else "",
            tag("div", *(_tile(*each) for each in tiles), class_="tiles"),
            split(e),
        ]
    )


def _tile(figure: str, told: str) -> Html:
    return tag("div", tag("b", figure), tag("span", told), class_="tile")


def split(e: EstimateData) -> Html:
    """A step by what compute does: it works, waits, and at last waits for a link."""
    step = e.step_time or 1.0
    link = max(e.step_time - e.compute_time - e.exposed_time, 0.0)
    parts = [
        ("compute", e.compute_time, "compute"),
        ("wait", e.exposed_time, "waits for collectives"),
        ("idle", link, "waits for the busiest link"),
    ]
    parts = [part for part in parts if part[1] > 1e-6 * step]
    told = ", ".join(f"{label} {seconds(time)} ({time / step:.0%})" for _, time, label in parts)
    spans = (tag("span", class_=kind, style=f"width:{100 * t / step:.2f}%") for kind, t, _ in parts)
    return join(
        [
            tag("div", *spans, class_="split", role="img", aria_label=f"A step: {told}"),
            tag("p", told, class_="note"),
        ]
    )


def _timeline(plan: PlanData) -> Html:
    if plan.details is None:
        return Html("")
    told = (
        "What every device computes, and what goes on on each link. Orange is waited for, green "
        "runs under compute. Lengths are the price; where a hidden collective lies on its link is "
        "not priced."
    )
    if any(row[-1] > 1 for row in plan.details.timeline.intervals):
        drawn = plan.details.timeline.iterations
        told += f" Of each loop, {drawn} iterations are drawn one by one, and the rest as one."
    names = (("in", "+", "Zoom in"), ("out", "−", "Zoom out"), ("left", "←", "Earlier"))
    more = (("right", "→", "Later"), ("reset", "whole step", "Show the whole step"))
    buttons = [
        tag("button", sign, type="button", data_zoom=name, aria_label=label, title=label)
        for name, sign, label in (*names, *more)
    ]
    chart = tag(
        "div",
        class_="chart",
        id="timeline-chart",
        tabindex="0",
        role="application",
        aria_label="Timeline of one step. Arrow keys move, plus and minus zoom, Home shows the "
        "whole step, n and p go from one interval to the next.",
    )
    kinds = ("compute", "compute"), ("waited for", "wait"), ("under compute", "hidden")
    keys = (tag("li", tag("i", class_=kind), label) for label, kind in kinds)
    return join(
        [
            tag("p", told, class_="note"),
            tag("ul", *keys, class_="legend"),
            tag("div", *buttons, class_="tools", role="group", aria_label="Zoom"),
            chart,
            tag("p", class_="live", id="timeline-live", aria_live="polite"),
            tag("details", tag("summary", "The longest, as a table"), _longest(plan.details)),
        ]
    )


def _longest(details: DetailsData) -> Html:
    """Operations and collectives by the time that they take in all."""
    shown = details.timeline
    totals: dict[tuple[float, float, float, float], list[float]] = {}
    for lane, kind, _, length, name, source, _, times in shown.intervals:
        found = totals.setdefault((lane, kind, name, source), [0.0, 0.0])
        found[0] += length
        found[1] += times
    longest = sorted(totals.items(), key=lambda each: -each[1][0])[:LONGEST]
    rows = (
        (
            shown.names[int(name)],
            tag("span", shown.sources[int(source)], class_="mono"),
            f"{shown.lanes[int(lane)]}, {shown.kinds[int(kind)]}",
            f"{times:.0f}",
            seconds(length * 1e-6),
        )
        for (lane, kind, name, source), (length, times) in longest
    )
    columns = ["what", "line", "where", "times#", "time#"]
    return table("The longest operations and collectives of a step", columns, rows)


def _memory(plan: PlanData) -> Html:
    if plan.details is None:
        return Html("")
    memory = plan.details.memory
    told = (
        f"{size(memory.peak)} of {size(memory.capacity)} per device at the fullest moment, at "
        f"{memory.where}. Kernels in the order in which they run."
    )
    alive = (
        (
            kind,
            each.value,
            tag("span", each.source, class_="mono"),
            each.count,
            join([size(each.bytes), bar(each.bytes / max(memory.peak, 1), "accent")]),
        )
        for each in memory.alive
        for kind in [each.kind]
    )
    parts = ", ".join(f"{kind} {size(b)}" for kind, b in memory.breakdown.items() if b)
    return join(
        [
            tag("p", told, class_="note"),
            tag("div", class_="chart", id="memory-chart"),
            tag("p", f"At the peak: {parts}.", class_="note"),
            tag(
                "details",
                tag("summary", "What is alive at the peak"),
                table(
                    "What is alive at the peak, largest first",
                    ["for", "first of them", "line", "count#", "bytes#"],
                    alive,
                ),
            ),
        ]
    )


def _collectives(plan: PlanData) -> Html:
    if plan.details is None:
        every = (
            (t.kind, ", ".join(t.axes), t.count, size(t.bytes), seconds(t.seconds))
            for t in sorted(plan.collectives, key=lambda t: -t.seconds)
        )
        columns = ["kind", "axes", "count#", "bytes#", "time#"]
        return table("Collectives of a step", columns, every) if plan.collectives else Html("")
    if not plan.details.moves:
        return tag("p", "None: devices exchange nothing.", class_="note")
    longest = max(m.exposed_seconds + m.hidden_seconds for m in plan.details.moves) or 1.0
    rows = [_collective(move, longest) for move in plan.details.moves]
    filter_ = search_box("collectives-filter", "Filter: kind, axis, value, line")
    columns = ["kind", "axes", "value and line", "count#", "bytes each#", "time in the step#"]
    told = (
        "The longest first; those that are alike together, as long as they are after combining. "
        "Open one for its reason."
    )
    return join(
        [
            tag("p", told, class_="note"),
            filter_,
            table("Collectives, ranked by time", columns, rows, class_="stack", id="moves"),
        ]
    )


def _collective(move: MoveData, longest: float) -> tuple[object, ...]:
    """A row: what moves, how long in the step, and folded away why."""
    hidden = move.hidden_seconds > move.exposed_seconds
    kind = "hidden" if hidden else "exposed"
    why = tag(
        "details",
        tag("summary", move.value),
        tag("div", tag("b", "Made by "), move.source),
        tag("div", tag("b", "For "), listing(move.uses)),
        tag("div", tag("b", "Because "), listing(move.reasons)),
        *(tag("pre", each) for each in move.decisions),
    )
    source = "" if move.source == move.value else tag("span", move.source, class_="mono")
    waited, under = move.exposed_seconds, move.hidden_seconds
    told = [seconds(each) + what for each, what in ((waited, ""), (under, " hidden")) if each]
    return (
        join([move.kind, " ", tag("span", kind, class_=f"tag {kind}")]),
        ", ".join(move.axes),
        join([why, source]),
        move.count,
        size(move.bytes),
        join([" + ".join(told) or "0", bar(waited / longest, "wait", under / longest, "hidden")]),
    )


def _tactics(plan: PlanData) -> Html:
    if not plan.history:
        return tag("p", "None: everything is replicated.", class_="note")
    longest = max(max(t.before.step_time, t.estimate.step_time) for t in plan.history) or 1.0
    rows = [
        (
            join([tag("b", entry.name), _told(entry)]),
            _change(entry.before.step_time, entry.estimate.step_time, seconds, longest),
            _change(
                entry.before.peak_memory,
                entry.estimate.peak_memory,
                size,
                max(entry.estimate.capacity, entry.before.peak_memory),
            ),
            ", ".join(f"{n} {kind}" for kind, n in sorted(entry.collectives.items())) or "none",
        )
        for entry in plan.history
    ]
    columns = ["tactic", "step time#", "peak memory#", "collectives after it"]
    return table("What each tactic did, in order", columns, rows, class_="stack")


def _told(entry: TacticData) -> Html:
    tiled = (f"{label} {show_entries(entries)}" for label, entries in entry.tiled.items())
    parts = [
        ("chose", entry.decisions),
        ("tiled", list(tiled)),
        ("stopped", entry.blocked),
        ("warnings", entry.warnings),
        ("replicated", entry.replicated),
    ]
    return join(
        tag("details", tag("summary", f"{what} ({len(items)})"), listing(items))
        for what, items in parts
        if items
    )


def _change(before: float, after: float, show: Callable[[float], str], most: float) -> Html:
    by = f" ({after / before - 1:+.0%})" if before and before != after else ""
    return join([f"{show(before)} → {show(after)}{by}", bar(after / most, "compute")])


def _conflicts(plan: PlanData) -> Html:
    met = [
        (entry.name, what, "resolved" if resolved else "open: not sharded there")
        for entry in plan.history
        for resolved, items in ((True, entry.resolved), (False, entry.conflicts))
        for what in items
    ]
    colors = {each["group"]: each for each in plan.colors}
    kinds = (
        (
            ", ".join(colors[c["color"]]["examples"][:2]) or f"color {c['color']}",
            listing(c["roles"]),
            c["count"],
        )
        for c in plan.conflicts
    )
    parts = []
    if plan.conflicts:
        told = (
            "A dimension that meets itself in one tensor: only one of the roles can have an axis."
        )
        columns = ["dimension", "roles that compete", "times#"]
        parts += [tag("p", told, class_="note"), table("Conflicts", columns, kinds)]
    if met:
        columns = ["tactic", "conflict", ""]
        parts += [tag("h3", "What tactics made of them"), table("Resolutions", columns, met)]
    return join(parts)


def _refused(plan: PlanData) -> Html:
    rows = []
    for entry in plan.history:
        for refusal in entry.refusals:
            reason = f"{refusal.reason} ({refusal.instead})" if refusal.instead else refusal.reason
            instead = [_suggestion(*dataclasses.astuple(each)) for each in refusal.suggestions]
            rows.append((entry.name, refusal.what, reason, listing(instead)))
    columns = ["tactic", "asked for", "why not", "instead"]
    return table("Requests that were refused", columns, rows, class_="stack") if rows else Html("")


def _suggestion(text: str, time: float | None, peak: int | None, fits: bool | None) -> str:
    if time is None or peak is None:
        return text
    return f"{text}: step {seconds(time)}, peak {size(peak)}" + ("" if fits else ", DOES NOT FIT")


def _meshes(plan: PlanData) -> Html:
    if not plan.meshes:
        return Html("")
    rows = (
        (
            " × ".join(f"{axis} {n}" for axis, n in each["mesh"].items()),
            ", ".join(str(v) for v in dict.fromkeys(each["networks"].values()) if v),
            seconds(each["step_time"]),
            size(each["peak_memory"]),
            ", ".join(_marks(each["chosen"], each["fits"])),
        )
        for each in plan.meshes
    )
    columns = ["mesh", "networks", "step time#", "peak memory#", ""]
    return table("Meshes that were planned, best first", columns, rows)


def _marks(chosen: bool, fits: bool) -> Iterator[str]:
    if chosen:
        yield "chosen"
    if not fits:
        yield "does not fit"


def _notes(plan: PlanData) -> Html:
    if plan.details is None or not plan.details.notes:
        return Html("")
    return join(tag("pre", each) for each in plan.details.notes)
