"""Changes worth costing for a collective: those that avoid it, or turn it into another one.

- leave out the action that put the axis here;
- pin the nearest value that has a name along it;
- give the axis to another role, where its color conflicts with itself;
- keep a gathered copy, or gather again;
- shard a replicated sum, so that it is scattered instead of reduced;
- leave out the action that makes a use need another layout.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.analysis import Between
from partita.decisions import Action, Change, GatherAgain
from partita.decisions.gather_again import Uses
from partita.explain.alternatives import Candidate, conflicts_of
from partita.explain.view import CollectiveGroup, PlanView
from partita.program.collectives import ALL_REDUCE
from partita.program.names import pattern, shared_pattern
from partita.spmd import Reshard
from partita.tactics.placement import sharing_a_buffer
from partita.tiling import Node

_AGAIN: dict[Uses, str] = {
    "far": "gather again instead of keeping copies between uses far apart",
    "iterations": "gather in each iteration instead of ahead of loops",
}
"""Ways to gather again what is kept, in words."""

MOST_REQUESTS = 4
"""Requests of a tactic that a change names."""


def candidates(
    view: PlanView, group: CollectiveGroup, causes: list[Node], rivals: list[Node]
) -> Iterator[Candidate]:
    """Yields the changes to cost, the most informative about the collective first.

    Args:
      view: of the plan.
      group: equivalent collectives.
      causes: nodes whose axes make the collective necessary.
      rivals: nodes at its uses that have these axes on another dimension.
    """
    reshard = group.reshards[0]
    for axis in reshard.step.axes:
        yield from _dropped(view, causes, axis)
        yield from _kept(view, causes, axis)
        yield from _given(view, causes, axis)
    yield from _regathered(view, reshard)
    for axis in reshard.step.axes:
        yield from _scattered(view, group, axis)
        yield from _dropped(view, rivals, axis)


def _dropped(view: PlanView, nodes: list[Node], axis: int) -> Iterator[Candidate]:
    """Leaves out the action that brought an axis to a node, and those of the same request."""
    for node in nodes:
        trail = view.origins.trail(node, axis)
        if trail is None or trail.action is None:
            continue
        actions = view.done.history[trail.position].actions
        alike = [a for a in actions if _like(a, trail.action)]
        yield _without(view, alike, trail.position, axis)
        # Another request for the same color may lead to the same.
        color = _color(view, trail.action)
        every = [a for a in actions if a.axis == trail.action.axis and _color(view, a) == color]
        yield _without(view, every, trail.position, axis)


def _without(view: PlanView, actions: list[Action], position: int, axis: int) -> Candidate:
    requests = dict.fromkeys(a.request or pattern(a.what) for a in actions)
    shown = ", ".join([*requests][:MOST_REQUESTS])
    more = f" and {len(requests) - MOST_REQUESTS} more" if len(requests) > MOST_REQUESTS else ""
    return Candidate(
        f"without {shown}{more} -> {view.mesh.names[axis]} in history[{position}]",
        position,
        Change(
            without=frozenset((*seed, axis) for a in actions for seed in a.seeds),
            without_decisions=frozenset(a.move for a in actions if a.move is not None),
        ),
    )


def _color(view: PlanView, action: Action) -> object:
    """The color group that an action starts from."""
    if action.seeds:
        return view.origins.color(("value", *action.seeds[0]))
    return action.color


def _like(action: Action, other: Action) -> bool:
    same = action.axis == other.axis and action.color == other.color
    if not same or other.request:
        return same and action.request == other.request
    return pattern(action.what) == pattern(other.what)


def _kept(view: PlanView, nodes: list[Node], axis: int) -> Iterator[Candidate]:
    """Pins the nearest value with a name along an axis, and those named like it."""
    for node in nodes:
        position = view.origins.took(node, axis)
        value = view.origins.nearest(node, axis, set(view.names))
        if position is None or value is None:
            continue
        alike = view.alike(value)
        buffers = {b for v in alike for b in sharing_a_buffer(view.program, v)}
        what = shared_pattern([view.names[v] for v in alike])
        yield Candidate(
            f"keep {what} replicated along {view.mesh.names[axis]}, before history[{position}]",
            position,
            pinned=frozenset((b, axis) for b in buffers),
        )


def _given(view: PlanView, nodes: list[Node], axis: int) -> Iterator[Candidate]:
    """Gives an axis to another role, where the color that has it conflicts with itself."""
    colors, groups = view.context.colors, view.context.analysis.groups.conflict_groups
    for node in nodes:
        position = view.origins.took(node, axis)
        if position is None:
            continue
        for conflict in conflicts_of(view.context, view.origins.color(node)):
            winner = view.origins.winner(conflict, axis, position)
            told = colors.conflicts[conflict].roles
            for number, (role, text) in enumerate(zip(groups[conflict], told, strict=True)):
                if role != winner:
                    yield Candidate(
                        f"give {view.mesh.names[axis]} to role {number}, {text}",
                        position,
                        Change(roles=frozenset({(conflict, axis, role)})),
                    )


def _regathered(view: PlanView, reshard: Reshard) -> Iterator[Candidate]:
    """Gathers a copy again for each use window, or keeps it."""
    if reshard.use is None:
        return
    value = view.moved(reshard)
    between, end = view.regathered(value), len(view.done.history)
    everything = tuple(range(len(view.program.values)))
    if between:
        if view.runs(value, reshard.use, between) > 1:
            kept = GatherAgain(everything, "none")
            text = "keep what is gathered between uses, everywhere"
            yield Candidate(text, end, decisions=(kept,))
        return
    runs = 1
    for way, text in _AGAIN.items():
        if view.runs(value, reshard.use, Between[way.upper()]) > runs:
            runs = view.runs(value, reshard.use, Between[way.upper()])
            again = GatherAgain(everything, way)
            yield Candidate(f"{text}, everywhere", end, decisions=(again,))


def _scattered(view: PlanView, group: CollectiveGroup, axis: int) -> Iterator[Candidate]:
    """Shards replicated sums along the axis that they reduce over."""
    if group.reshards[0].step.kind != ALL_REDUCE.name:
        return
    value, end = group.values[0], len(view.done.history)
    layout = view.plan(value).layout
    for dim in sorted(range(len(layout)), key=lambda dim: len(layout[dim])):
        if view.origins.free(("value", value, dim), axis):
            yield Candidate(
                f"shard the sum along {view.mesh.names[axis]} too, on dim {dim}",
                end,
                seeds=frozenset((v, dim, axis) for v in group.values),
            )
            return
