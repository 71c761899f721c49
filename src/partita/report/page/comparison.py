"""Page of several plans: their figures side by side, and the shardings that differ."""

from __future__ import annotations

from typing import Any

from partita.planning.diff import relative_change
from partita.report.compare import FIGURES, ComparisonData, SideData, shown
from partita.report.page import document
from partita.report.page.markup import Html, bar, join, listing, search_box, table, tag
from partita.report.page.sections import Section
from partita.text import seconds


def comparison_page(found: ComparisonData, title: str) -> str:
    """The page of a comparison."""
    parts = [("cost", "Cost of a step", _costs(found))]
    if found.collectives:
        parts.append(("collectives", "Collectives", _collectives(found)))
    if found.shardings:
        parts.append(("shardings", "Sharded otherwise", _shardings(found)))
    parts.append(("tactics", "Tactics", _tactics(found)))
    sections = (Section(*part).__html__() for part in parts)
    best = min(found.plans, key=lambda side: (not side.estimate.fits, side.estimate.step_time))
    lead = (
        f"{len(found.plans)} plans. The quickest that fits is {best.name}, with "
        f"{seconds(best.estimate.step_time)} a step."
        if best.estimate.fits
        else f"{len(found.plans)} plans, none of which fits."
    )
    body = join([tag("h1", title), tag("p", lead, class_="lead", id="decision"), *sections])
    data: dict[str, Any] = {"timeline": None, "memory": None, "searches": [], "collectives": []}
    return document(title, [(at, told) for at, told, _ in parts], body, data)


def _costs(found: ComparisonData) -> Html:
    """One row for each plan, since there may be many."""
    longest = max(side.estimate.step_time for side in found.plans) or 1.0
    rows = [
        _row(side, name, longest) for side, name in zip(found.plans, _names(found), strict=True)
    ]
    columns = ["plan", "mesh", *(f"{label.strip()}#" for _, label, _ in FIGURES), "fits"]
    made = [table("Cost of a step, per device", columns, rows)]
    if len(found.plans) == 2:
        pairs = (
            (label.strip(), *(show(v) for v in values), relative_change(values))
            for key, label, show in FIGURES
            for values in [[getattr(side.estimate, key) for side in found.plans]]
        )
        names = [f"{side.name}#" for side in found.plans]
        made.append(table("By how much they differ", ["what", *names, "change#"], pairs))
    return join(made)


def _names(found: ComparisonData) -> list[str]:
    """Returns the column titles of plans: names of two plans, numbers of more."""
    if len(found.plans) == 2:
        return [side.name for side in found.plans]
    return [str(number) for number, _ in enumerate(found.plans, 1)]


def _row(side: SideData, number: str, longest: float) -> tuple[object, ...]:
    e = side.estimate
    figures: list[object] = [show(getattr(e, key)) for key, _, show in FIGURES]
    parts = (
        *(e.compute_time / longest, "compute"),
        *(e.exposed_time / longest, "wait"),
    )
    figures[0] = join([str(figures[0]), bar(*parts)])
    fits = tag("span", "fits" if e.fits else "does not fit", class_="good" if e.fits else "bad")
    mesh = " × ".join(f"{axis} {n}" for axis, n in side.mesh.items())
    told = side.name if number == side.name else f"{number}: {side.name}"
    return (tag("b", told), f"{mesh}, {side.hardware}", *figures, fits)


def _collectives(found: ComparisonData) -> Html:
    columns = ["kind", "axes", *(f"{name}#" for name in _names(found))]
    rows = (
        (
            each.kind,
            ", ".join(each.axes),
            *(
                f"{n} in {seconds(t)}" if n else "–"
                for n, t in zip(each.count, each.seconds, strict=True)
            ),
        )
        for each in found.collectives
    )
    return table("Collectives: count and time of each plan", columns, rows)


def _shardings(found: ComparisonData) -> Html:
    rows = (
        (
            join([tag("span", e.name, class_="mono"), f" ×{e.count}" if e.count > 1 else ""]),
            tag("span", e.type, class_="mono"),
            *map(shown, e.shardings),
        )
        for e in found.shardings
    )
    columns = ["value", "type", *_names(found)]
    field = search_box("arguments-filter", "Search: name, type, sharding")
    made = table(
        "Arguments and results that are sharded otherwise", columns, rows, id="argument-rows"
    )
    return join([field, made])


def _tactics(found: ComparisonData) -> Html:
    names = zip(_names(found), found.plans, strict=True)
    rows = ((name, listing(side.tactics)) for name, side in names)
    return table("Tactics of each plan", ["plan", "tactics, in order"], rows)
