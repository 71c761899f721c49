"""`ShardClass`: one class of operations or values has an axis elsewhere, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from partita.analysis.describe import factor_place
from partita.decisions.action import Action
from partita.decisions.decision import Decision
from partita.decisions.references import LOST, Axis, Row, Visit, walk
from partita.decisions.stage import Stage
from partita.program import Program
from partita.tiling import LAYOUTS, Layout, Node, Propagation, Propagator, Tiling
from partita.tiling.tiling import Pinned

NOWHERE = -1
"""The place of an axis that is taken off."""

NONE = -1
"""The number of no layout, where an axis cannot be put."""

_CALLED = {"op": "operation", "value": "value"}


class ShardClass(Decision, frozen=True, order=True, tag="shard_class"):
    """Puts an axis on one place of a class, whichever it was on before; nothing propagates.

    So an operation gathers its operand where the color would have it exchanged, or a value is kept
    in another layout than those that are computed like it. Values that share a buffer go together.
    """

    kind: Literal["op", "value"]
    """Kind of the class: operations or values."""
    member: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """A member of the class: an operation or a value of the program."""
    axis: Axis
    place: Annotated[int, msgspec.Meta(ge=-1, le=2**31)]
    """The factor or the dimension, or `NOWHERE`."""

    @property
    def over_classes(self) -> bool:
        """True if it is applied to classes."""
        return True

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """Returns the class if it changes, with those that share its buffer, and nothing else."""
        return take_each(propagator, tiling, [self])

    def after(self, propagator: Propagator, index: int, before: int, pinned: Pinned) -> int:
        """Returns the number of the layout of a class after it, given that before; `NONE` if the
        axis cannot be put there."""
        layout = self._layout(propagator, index, LAYOUTS.all[before], pinned)
        return NONE if layout is None else LAYOUTS[layout]

    def _layout(
        self, propagator: Propagator, index: int, before: Layout, pinned: Pinned
    ) -> Layout | None:
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

    def actions(self, stage: Stage) -> Iterator[Action]:
        """Returns the axis that the class takes."""
        yield Action(stage.context.mesh.names[self.axis], self._name(stage), move=self)

    def describe(self, stage: Stage) -> str:
        """Returns it in words: the class by one of its members, and the place."""
        return f"{self._name(stage)} -> {stage.context.mesh.names[self.axis]}"

    def _name(self, stage: Stage) -> str:
        program = stage.context.analysis.program
        if self.kind == "value":
            place = "no dimension" if self.place == NOWHERE else f"dimension {self.place}"
            return f"{program.describe(self.member)}: {place}"
        op = program.operations[self.member]
        place = "no factor" if self.place == NOWHERE else factor_place(op.rule, self.place)
        return f"{op.title} at {op.source}: {place}" if op.source else f"{op.title}: {place}"

    def problem(self, program: Program) -> str:
        """Returns that there is no such place, if there is none."""
        if self.kind == "op":
            places = len(program.operations[self.member].rule.factors)
        else:
            places = len(program.values[self.member].type.shape)
        if self.place < places:
            return ""
        return f"there is no place {self.place} of {_CALLED[self.kind]} {self.member}"

    @classmethod
    def walked(cls, row: Row, visit: Visit) -> Any:
        """Replaces the references of a row; what the member is, is said by its kind."""
        found = walk(row, cls, visit)
        kind = row.get("kind")
        if found is LOST or kind not in _CALLED or "member" not in row:
            return found
        member = visit("operation" if kind == "op" else "value", row["member"], row)
        return LOST if member is LOST else {**found, "member": member}


def take_each(propagator: Propagator, tiling: Tiling, each: Iterable[ShardClass]) -> Propagation:
    """Returns what decisions take, one after the other: each all of its classes, or none."""
    graph, row, known = propagator.graph, tiling.row, propagator.moved.setdefault(tiling.pinned, {})
    now = dict[int, int]()
    """Layout numbers, by the place in the row of a tiling."""
    taken: dict[str, dict[int, int]] = {"op": {}, "value": {}}
    for decision in each:  # there may be thousands
        kind, axis, at = decision.kind, decision.axis, decision.place
        if kind == "op":
            first, indices = 0, [graph.op_class[decision.member]]
        else:
            first, indices = tiling.count, propagator.sharing(graph.value_class[decision.member])
        changed = []
        for index in indices:
            place = first + index
            before = now.get(place)
            if before is None:
                before = now[place] = int(row[place])
            key = place, axis, at, before
            after = known.get(key)
            if after is None:
                after = known[key] = decision.after(propagator, index, before, tiling.pinned)
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
