"""Suggestions where a size does not divide: leave it, use fewer devices, another dimension.

They are named here, as tactics; what they cost is filled in by whoever can estimate a plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from partita.decisions import Request, Stage
from partita.program.names import pattern
from partita.tactics.protocol import Suggestion, Tactic

MOST_NAMED = 3
"""Names that a suggestion lists."""

Again = Callable[[Iterable[Request], Iterable[Request]], Tactic]
"""The tactic that was refused something, with other requests, and with values pinned."""


def suggestions(
    stage: Stage, requests: Sequence[Request], misfits: Sequence[Request], axis: int, again: Again
) -> tuple[Suggestion, ...]:
    """Returns suggestions in place of a tactic whose requests failed because of their sizes.

    Args:
      stage: what had been decided before the tactic.
      requests: all of the tactic, and of each of the refused ones the one dimension.
      misfits: the requests that were refused.
      axis: position of the axis in the mesh.
      again: makes the tactic anew.
    """
    mesh = stage.context.mesh
    fitting = [request for request in requests if request not in misfits]
    replicated = f"keep {_names(stage, misfits)} replicated along {mesh.names[axis]}"
    return (
        Suggestion(replicated, again(fitting, misfits)),
        *_on_fewer_devices(stage, requests, misfits, axis, again),
        *_in_another_dimension(stage, requests, misfits, axis, again),
    )


def _on_fewer_devices(
    stage: Stage, requests: Sequence[Request], misfits: Sequence[Request], axis: int, again: Again
) -> Iterator[Suggestion]:
    """The most devices along the axis that fit all requests, and still shard something."""
    mesh, values = stage.context.mesh, stage.context.analysis.program.values
    for parts in range(mesh.sizes[axis] - 1, 1, -1):
        fits = mesh.sizes[axis] % parts == 0 and all(
            values[request.value].type.shape[dim]
            % (parts * mesh.size(stage.assignment.values[request.value][dim]))
            == 0
            for request in misfits
            for dim in request.dims
        )
        if fits:
            sizes = (*mesh.sizes[:axis], parts, *mesh.sizes[axis + 1 :])
            smaller = dataclasses.replace(mesh, sizes=sizes)
            devices = f"{smaller.devices} of the {mesh.devices} devices"
            text = f"{mesh.names[axis]}={parts}, on {devices}"
            yield Suggestion(text, again(requests, ()), smaller)
            return


def _in_another_dimension(
    stage: Stage, requests: Sequence[Request], misfits: Sequence[Request], axis: int, again: Again
) -> Iterator[Suggestion]:
    """Dimensions that all refused values can take instead; what asked for the same goes along."""
    propagator, tiling = stage.context.single, stage.tiling

    def can(request: Request, dim: int) -> bool:
        shape = propagator.graph.program.values[request.value].type.shape
        node = ("value", request.value, dim)
        return dim < len(shape) and propagator.refusal(tiling, node, axis) is None

    asked = tuple(misfits[0].dims)
    if any(tuple(request.dims) != asked for request in misfits):
        return
    shape = propagator.graph.program.values[misfits[0].value].type.shape
    for dim in range(len(shape)):
        if dim in asked or not all(can(request, dim) for request in misfits):
            continue
        moved = [tuple(request.dims) == asked and can(request, dim) for request in requests]
        changed = [
            msgspec.structs.replace(request, dims=(dim,)) if move else request
            for request, move in zip(requests, moved, strict=True)
        ]
        names = _names(
            stage, [request for request, move in zip(requests, moved, strict=True) if move]
        )
        yield Suggestion(f"dimension {dim} instead of {asked[0]} of {names}", again(changed, ()))


def _names(stage: Stage, requests: Sequence[Request]) -> str:
    """Names the values of requests: arguments, if there are some, repeated structure once."""
    values = stage.context.analysis.program.values
    arguments = [request for request in requests if values[request.value].producer is None]
    names = list(dict.fromkeys(pattern(request.name) for request in arguments or requests))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
