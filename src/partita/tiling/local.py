"""The local action: one class of operations or values has an axis elsewhere, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from partita.tiling.propagate import Node, Propagation, Propagator
from partita.tiling.tiling import LAYOUTS, Layout, Pinned, Tiling

NOWHERE = -1
"""The place of an axis that is taken off."""

NONE = -1
"""The number of no layout, where an axis cannot be put."""


@dataclasses.dataclass(frozen=True, order=True)
class LocalAction:
    """Put an axis on one place of a class, whichever it was on before; nothing propagates.

    So an operation gathers its operand where the color would have it exchanged, or a value is kept
    in another layout than those that are computed like it. Values that share a buffer go together.
    """

    kind: Literal["op", "value"]
    """Whether the class is one of operations or of values."""
    member: int
    """A member of the class: an operation or a value of the program."""
    axis: int
    """Position of the axis in the mesh."""
    place: int
    """The factor or the dimension, or `NOWHERE`."""

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """The class if it changes, with those that share its buffer, and nothing else."""
        return take_each(propagator, tiling, [self])

    def after(self, propagator: Propagator, index: int, before: int, pinned: Pinned) -> int:
        """The number of the layout of a class after it, given that before; `NONE` if the axis
        cannot be put there."""
        layout = self._layout(propagator, index, LAYOUTS.all[before], pinned)
        return NONE if layout is None else LAYOUTS[layout]

    def _layout(
        self, propagator: Propagator, index: int, before: Layout, pinned: Pinned
    ) -> Layout | None:
        """The layout of a class after it; None if the axis cannot be put there."""
        for place, axes in enumerate(before):
            if self.axis in axes and propagator.given((self.kind, index, place)):
                return None
        off = tuple(tuple(a for a in axes if a != self.axis) for axes in before)
        if self.place == NOWHERE:
            return off
        if self.axis in before[self.place]:
            return before
        if self.kind == "op" and propagator.graph.ops[index].colors[self.place] < 0:
            return None
        node: Node = (self.kind, index, self.place)
        if propagator.refused(off, node, self.axis, pinned) is not None:
            return None
        return (*off[: self.place], (*off[self.place], self.axis), *off[self.place + 1 :])


def take_each(
    propagator: Propagator, tiling: Tiling, actions: Iterable[LocalAction]
) -> Propagation:
    """What local actions take, one after the other: each all of its classes, or none."""
    graph, row, known = propagator.graph, tiling.row, propagator.moved.setdefault(tiling.pinned, {})
    now = dict[int, int]()
    """By the place in the row of a tiling, the number of the layout."""
    taken: dict[str, dict[int, int]] = {"op": {}, "value": {}}
    for action in actions:  # there may be thousands
        kind, axis, at = action.kind, action.axis, action.place
        if kind == "op":
            first, indices = 0, [graph.op_class[action.member]]
        else:
            first, indices = tiling.count, propagator.sharing(graph.value_class[action.member])
        changed = []
        for index in indices:
            place = first + index
            before = now.get(place)
            if before is None:
                before = now[place] = int(row[place])
            key = place, axis, at, before
            after = known.get(key)
            if after is None:
                after = known[key] = action.after(propagator, index, before, tiling.pinned)
            if after == NONE:
                break
            if after != before:
                changed.append((place, index, after))
        else:
            for place, index, after in changed:
                now[place] = after
                taken[kind][index] = at
    tiled = tiling.with_rows(list(now), list(now.values()))
    return Propagation(tiled, taken["op"], taken["value"])
