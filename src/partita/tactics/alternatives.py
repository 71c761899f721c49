"""Ways out where a size does not divide: keep it whole, use fewer devices, split another dimension.

They are named here, as tactics; what they cost is filled in by whoever can price a plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from partita.analysis.describe import pattern
from partita.tactics.protocol import Stage, Tactic, WayOut, Wish
from partita.tiling import Tiling

MOST_NAMED = 3
"""Names that an alternative lists."""

Again = Callable[[Iterable[Wish], Iterable[Wish]], Tactic]
"""The tactic that was refused something, with other wishes, and with values kept whole."""


def alternatives(
    stage: Stage, wishes: Sequence[Wish], misfits: Sequence[Wish], axis: int, again: Again
) -> tuple[WayOut, ...]:
    """What can be done instead of a tactic that was refused wishes because of their sizes.

    Args:
      stage: what had been decided before the tactic.
      wishes: all of the tactic, and of each of the refused ones the one dimension.
      misfits: the wishes that were refused.
      axis: position of the axis in the mesh.
      again: makes the tactic anew.
    """
    mesh = stage.context.mesh
    fitting = [wish for wish in wishes if wish not in misfits]
    whole = f"keep {_names(stage, misfits)} whole along {mesh.names[axis]}"
    return (
        WayOut(whole, again(fitting, misfits)),
        *_on_fewer_devices(stage, wishes, misfits, axis, again),
        *_in_another_dimension(stage, wishes, misfits, axis, again),
    )


def _on_fewer_devices(
    stage: Stage, wishes: Sequence[Wish], misfits: Sequence[Wish], axis: int, again: Again
) -> Iterator[WayOut]:
    """The most devices along the axis that fit all wishes, and still split something."""
    mesh, values = stage.context.mesh, stage.context.analysis.program.values
    for parts in range(mesh.sizes[axis] - 1, 1, -1):
        fits = mesh.sizes[axis] % parts == 0 and all(
            values[wish.value].type.shape[dim]
            % (parts * mesh.size(stage.assignment.values[wish.value][dim]))
            == 0
            for wish in misfits
            for dim in wish.dims
        )
        if fits:
            sizes = (*mesh.sizes[:axis], parts, *mesh.sizes[axis + 1 :])
            smaller = dataclasses.replace(mesh, sizes=sizes)
            devices = f"{smaller.devices} of the {mesh.devices} devices"
            text = f"{mesh.names[axis]}={parts}, on {devices}"
            yield WayOut(text, again(wishes, ()), smaller)
            return


def _in_another_dimension(
    stage: Stage, wishes: Sequence[Wish], misfits: Sequence[Wish], axis: int, again: Again
) -> Iterator[WayOut]:
    """Dimensions that all refused values can take instead; what asked for the same goes along."""
    spreader, now = stage.context.single, stage.assignment
    tiling = Tiling(now.ops, now.values, now.pins)

    def can(wish: Wish, dim: int) -> bool:
        shape = spreader.graph.program.values[wish.value].type.shape
        node = ("value", wish.value, dim)
        return dim < len(shape) and spreader.refusal(tiling, node, axis) is None

    asked = tuple(misfits[0].dims)
    if any(tuple(wish.dims) != asked for wish in misfits):
        return
    shape = spreader.graph.program.values[misfits[0].value].type.shape
    for dim in range(len(shape)):
        if dim in asked or not all(can(wish, dim) for wish in misfits):
            continue
        moved = [tuple(wish.dims) == asked and can(wish, dim) for wish in wishes]
        changed = [
            dataclasses.replace(wish, dims=(dim,)) if move else wish
            for wish, move in zip(wishes, moved, strict=True)
        ]
        names = _names(stage, [wish for wish, move in zip(wishes, moved, strict=True) if move])
        yield WayOut(f"dimension {dim} instead of {asked[0]} of {names}", again(changed, ()))


def _names(stage: Stage, wishes: Sequence[Wish]) -> str:
    """What wishes are for: arguments, if some are, repeated structure written once."""
    values = stage.context.analysis.program.values
    arguments = [wish for wish in wishes if values[wish.value].producer is None]
    names = list(dict.fromkeys(pattern(wish.name) for wish in arguments or wishes))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
