"""Explaining a value: how it is sharded, who decided that, and what was not possible."""

from __future__ import annotations

import dataclasses

from partita.errors import FormerName
from partita.escape import printed
from partita.explain.collectives import summary_line
from partita.explain.origins import Decision, LeftOut
from partita.explain.view import PlanView
from partita.program.names import pattern, shared_pattern
from partita.text import show_entries
from partita.tiling import entries, local_type

MOST_MOVES = 4
"""Collectives of a value that are printed."""


@dataclasses.dataclass(frozen=True)
class ValueExplanation:
    """Sharding of a value, with its reasons; equivalent values share one explanation."""

    name: str
    """The user's name for it, indices that differ as `[*]`; or its operation and source line."""
    count: int
    """Number of values that this holds for."""
    type: str
    sharding: tuple[str | tuple[str, ...] | None, ...]
    """Entries of the `PartitionSpec` of its layout."""
    shard: str
    """Type of one device's shard."""
    decisions: tuple[Decision, ...]
    """Who sharded which dimension along which axis, and how it came there. Of the first value."""
    left_out: tuple[LeftOut, ...]
    """Axes that tactics wanted on a dimension, or nearly had there, and why it has them not."""
    notes: tuple[str, ...]
    """Further notes on its layout."""
    moves: tuple[str, ...]
    """Its collectives, and the operations that they are for. Of the first value."""

    piece = FormerName("shard")

    @printed
    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        lines = [
            f"{self.name}{times} : {self.type} {show_entries(self.sharding)}, {self.shard} a device"
        ]
        for each in (*self.decisions, *self.left_out):
            lines += [f"  {line}" for line in str(each).splitlines()]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  moved by {move}" for move in self.moves[:MOST_MOVES]]
        if len(self.moves) > MOST_MOVES:
            lines.append(f"  moved by {len(self.moves) - MOST_MOVES} more collectives")
        return "\n".join(lines)


def explain_values(view: PlanView, found: list[tuple[str, int]]) -> list[ValueExplanation]:
    """Explains values, equivalent ones together.

    Args:
      view: of the plan.
      found: names and values.
    """
    groups: dict[object, list[tuple[str, ValueExplanation]]] = {}
    for name, value in dict.fromkeys(found):
        told = _explain(view, name, value)
        decisions = [(d.where, d.axis, d.position, d.color) for d in told.decisions]
        left_out = [(x.dim, x.axis, x.position, pattern(x.reason)) for x in told.left_out]
        key = (
            pattern(name) if "%" not in name else name.partition(" ")[2],
            told.type,
            told.sharding,
            tuple(decisions),
            tuple(left_out),
            told.notes,
            len(told.moves),
        )
        groups.setdefault(key, []).append((name, told))
    explained = []
    for rows in groups.values():
        names = [name for name, _ in rows]
        label = names[0] if "%" in names[0] else shared_pattern(names)
        explained.append(dataclasses.replace(rows[0][1], name=label, count=len(rows)))
    return explained


def _explain(view: PlanView, name: str, value: int) -> ValueExplanation:
    plan, type_ = view.plan(value), view.program.values[value].type
    asked = view.done.stage.assignment.values[value]
    decisions = [
        view.origins.decision(("value", value, dim), axis, f"dim {dim}")
        for dim, axes in enumerate(asked)
        for axis in axes
        if axis in plan.layout[dim]
    ]
    return ValueExplanation(
        name,
        1,
        str(type_),
        entries(plan.layout, view.mesh),
        str(local_type(type_, plan.layout, view.mesh)),
        tuple(decision for decision in decisions if decision is not None),
        tuple(view.origins.left_out(value)),
        tuple(_notes(view, value)),
        tuple(summary_line(view, number) for number in view.moves_of.get(value, ())),
    )


def _notes(view: PlanView, value: int) -> list[str]:
    plan, mesh = view.plan(value), view.mesh
    asked = view.done.stage.assignment.values[value]
    notes = []
    if not any(asked) and not any(plan.layout):
        notes.append("no tactic has put an axis there")
    if plan.unreduced:
        axes = ", ".join(mesh.axis_names(tuple(sorted(plan.unreduced))))
        notes.append(
            f"each device has a part of a sum over {axes}, which its only use goes on with"
        )
    if plan.layout != asked:
        why = "its only use adds it up so" if plan.unreduced else "its uses need it so"
        notes.append(f"the tactics asked for {show_entries(entries(asked, mesh))}; {why}")
    return notes
