"""The history of a plan as text: what each tactic did, was refused, and changed in cost."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from partita.planning.schedule import Scheduled, TacticReport
from partita.text import Branch, Text, seconds, show_entries, size, tree

MOST_REPLICATED = 8
"""Lines of the user's that a tactic's report shows as requiring replication."""


def history(plan: Scheduled) -> RenderableType:
    """The tactics of a plan as a tree."""
    branches: list[Branch] = [(entry.name, list(_entry(entry))) for entry in plan.history]
    if not branches:
        branches = [("none: everything is replicated", ())]
    return Group(Text("Tactics"), *tree(branches))


def _entry(entry: TacticReport) -> Iterator[Branch]:
    """Yields the record of one tactic."""
    for decision in entry.decisions:
        yield f"chose {decision}", ()
    for label, tiled in entry.tiled.items():
        yield f"tiled {label} {show_entries(tiled)}", ()
    if not entry.tiled:
        yield "tiled no argument", ()
    for number, refusal in enumerate(entry.refused):
        # Refusals of one cause have the same suggestions: the last of them shows them.
        later = (other.suggestions for other in entry.refused[number + 1 :])
        suggestions = () if refusal.suggestions in later else refusal.suggestions
        yield _noted(f"refused {refusal}"), [(f"or {each}", ()) for each in suggestions]
    for blocked in entry.blocked:
        if not blocked.is_composition or not entry.tiled:
            yield f"stopped {blocked}", ()
    for conflict in entry.resolved:
        yield f"resolved {conflict}", ()
    for conflict in entry.conflicts:
        yield _noted(f"conflict {conflict}"), ()
    for warning in entry.warnings:
        yield _noted(f"warning {warning}"), ()
    largest = sorted(entry.replicated_uses, key=lambda use: -use.bytes)
    for use in largest[:MOST_REPLICATED]:
        yield _noted(f"replicated {use}"), ()
    if rest := largest[MOST_REPLICATED:]:
        total = size(sum(use.bytes for use in rest))
        yield _noted(f"replicated: {len(rest)} more lines gather {total}"), ()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(entry.collectives.items()))
    before, now = entry.before, entry.estimate
    yield (
        f"step {seconds(before.step_time)} -> {seconds(now.step_time)}, "
        f"peak {size(before.peak_memory)} -> {size(now.peak_memory)}, {kinds or 'no collectives'}",
        (),
    )


def _noted(text: str) -> Text:
    """A line that should not be overlooked."""
    return Text(text, style="yellow")
