"""The local action: one class of operations or values has an axis elsewhere, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from partita.tiling.propagate import Node, Propagation, Propagator
from partita.tiling.tiling import Layout, Tiling

NOWHERE = -1
"""The place of an axis that is taken off."""


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
        graph = propagator.graph
        if self.kind == "op":
            index = graph.op_class[self.member]
            layouts = self._layouts(propagator, tiling, [index])
            return Propagation(tiling.changed(layouts, {}), dict.fromkeys(layouts, self.place), {})
        index = graph.value_class[self.member]
        layouts = self._layouts(propagator, tiling, _sharing(propagator, index))
        return Propagation(tiling.changed({}, layouts), {}, dict.fromkeys(layouts, self.place))

    def _layouts(
        self, propagator: Propagator, tiling: Tiling, indices: Sequence[int]
    ) -> dict[int, Layout]:
        """The layouts of classes that change; none if one of them cannot."""
        found: dict[int, Layout] = {}
        for index in indices:
            node: Node = (self.kind, index, self.place)
            layout = self._layout(propagator, tiling, node)
            if layout is None:
                return {}
            if layout != propagator.layout(tiling, node):
                found[index] = layout
        return found

    def _layout(self, propagator: Propagator, tiling: Tiling, node: Node) -> Layout | None:
        """The layout of the class after it; None if the axis cannot be put there."""
        before = propagator.layout(tiling, node)
        if any(
            self.axis in axes and propagator.given((node[0], node[1], place))
            for place, axes in enumerate(before)
        ):
            return None
        off = tuple(tuple(a for a in axes if a != self.axis) for axes in before)
        if self.place == NOWHERE:
            return off
        if self.axis in before[self.place]:
            return before
        if node[0] == "op" and propagator.graph.ops[node[1]].colors[self.place] < 0:
            return None
        without = {node[1]: off}
        bare = tiling.changed(without, {}) if node[0] == "op" else tiling.changed({}, without)
        if propagator.refusal(bare, node, self.axis) is not None:
            return None
        return tuple(
            (*axes, self.axis) if place == self.place else axes for place, axes in enumerate(off)
        )


def _sharing(propagator: Propagator, index: int) -> list[int]:
    """The value classes that share buffers with one, itself included."""
    found = [index]
    for each in found:
        found += [v for v in propagator.graph.values[each].aliases if v not in found]
    return found
