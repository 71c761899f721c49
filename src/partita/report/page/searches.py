"""Record of searches: progress of the best plan, and the best different plans side by side."""

from __future__ import annotations

from partita.report.data import PlanData, ProposalData, SearchData, TacticData
from partita.report.page.markup import Html, join, listing, table, tag
from partita.text import seconds, show_entries, size

COMPARED = 24
"""Number of arguments in which the plans are compared."""


def searches(plan: PlanData) -> Html:
    """Each search of the history."""
    found = [(entry, entry.search) for entry in plan.history if entry.search is not None]
    return join(_search(number, *each) for number, each in enumerate(found))


def _search(number: int, entry: TacticData, search: SearchData) -> Html:
    told = (
        f"{entry.name}: {search.evaluations} plans were evaluated. The curve is the best so far; "
        "while nothing fits, the smallest."
    )
    parts = [
        tag("p", told, class_="note"),
        tag("div", class_="chart", id=f"search-chart-{number}", data_search=number),
    ]
    if search.proposals:
        parts += [
            tag("h3", f"The best {len(search.proposals)} different plans"),
            _costs(search.proposals),
            tag("details", tag("summary", "How they shard the arguments"), _shardings(search)),
        ]
    return join(parts)


def _costs(proposals: list[ProposalData]) -> Html:
    best = proposals[0].step_time or 1.0
    rows = (
        (
            n,
            listing(each.decisions) or "nothing: replicated",
            f"{seconds(each.step_time)} ({each.step_time / best - 1:+.1%})",
            seconds(each.compute_time),
            seconds(each.exposed_time),
            seconds(each.hidden_time),
            _peak(each),
            ", ".join(f"{count} {kind}" for kind, count in each.collectives.items()) or "none",
        )
        for n, each in enumerate(proposals, 1)
    )
    columns = ["plan#", "decisions", "step time#", "compute#", "exposed#", "hidden#", "peak#"]
    return table("The best different plans", [*columns, "collectives"], rows)


def _peak(each: ProposalData) -> Html:
    too_large = "" if each.fits else tag("span", " too large", class_="bad")
    return join([size(each.peak_memory), too_large])


def _shardings(search: SearchData) -> Html:
    """One column for each plan, one row for each argument; what differs comes first."""
    labels = list(search.proposals[0].shardings)
    told = {
        label: [show_entries(each.shardings[label]) for each in search.proposals]
        for label in labels
    }
    labels.sort(key=lambda label: -len(set(told[label])))
    rows = ((label, *told[label]) for label in labels[:COMPARED])
    columns = ["argument", *(str(n) for n in range(1, len(search.proposals) + 1))]
    return table("How the best plans shard the arguments", columns, rows)
