"""Decisions: single choices of a partitioning as data, which can be applied, and kept.

Tactics and searches produce decisions; reports and explanations read them; a plan file is a list
of them, see `partita.saved`. Each names values, colors and axes, not the layouts that it leads to.
So it can be applied to another stage, with a change, and to a program that has changed.

A new kind is a module in this package with one class:

    class Pin(Decision, frozen=True, tag="pin"):
        value: Value
        axis: Axis

        def apply(self, stage: Stage) -> Stage:
            return stage.pinned([(self.value, self.axis)])

Its class name and its `tag` are all that others know of it; fields that refer to a program have the
types of `references`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from partita.decisions.action import Action
from partita.decisions.references import Refers, Row, Visit, walk
from partita.decisions.stage import Stage
from partita.program import Program
from partita.tiling import Propagation, Propagator, Tiling, assignment

TAG = "decision"
"""The field of a file's rows that says of which kind a decision is."""


@dataclasses.dataclass(frozen=True)
class Change:
    """Differences to make when decisions are applied again. Empty fields change nothing."""

    without: frozenset[tuple[int, int, int]] = frozenset()
    """`(value, dimension, axis)` seeds that nothing propagates from."""
    without_decisions: frozenset[Decision] = frozenset()
    """Decisions of a search that are left out."""
    roles: frozenset[tuple[int, int, int]] = frozenset()
    """`(group of conflict sets, axis, role)`: the role that gets the axis."""

    def winners(self, axis: int) -> dict[int, int]:
        """Returns, by conflict, the role that gets an axis instead."""
        return {conflict: role for conflict, along, role in self.roles if along == axis}

    def resolved(self, axis: int, roles: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """The roles that get an axis, some of them others than these."""
        winners = self.winners(axis)
        return tuple((conflict, winners.get(conflict, role)) for conflict, role in roles)


UNCHANGED = Change()
"""Everything is decided as it was."""


class Decision(msgspec.Struct, frozen=True, tag_field=TAG):
    """One decision of a partitioning.

    A kind either says how it changes a stage, in `apply`; or it shards something along an axis,
    and says in `take` what then takes the axis, in a program that is folded into classes. Searches
    make moves of the latter kind.
    """

    changes_program: ClassVar[bool] = False
    """True for a kind whose stage is of another program, in which nothing is sharded."""

    @property
    def over_classes(self) -> bool:
        """True if it is applied by `take`, to the classes of the stage."""
        return False

    @property
    def axes(self) -> frozenset[int]:
        """Positions of the axes that it is about."""
        axis = getattr(self, "axis", None)
        return frozenset() if axis is None else frozenset((axis,))

    @property
    def weight(self) -> int:
        """The number of moves that it counts as in a search."""
        return 1

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage after it."""
        raise NotImplementedError

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """Returns what takes the axis, if it is `over_classes`."""
        raise NotImplementedError

    def changed(self, change: Change) -> Decision | None:
        """Returns it as a change says; None if that leaves it out."""
        return None if self in change.without_decisions else self

    def actions(self, stage: Stage) -> Iterable[Action]:
        """Returns where it puts axes before they propagate, in words, for reports."""
        return ()

    def describe(self, stage: Stage) -> str:
        """Returns it in words."""
        return str(self)

    def problem(self, program: Program) -> str:
        """Returns why it cannot be applied to a program, empty if it can; numbers are right."""
        return ""

    def fitting(self, program: Program, lose: Callable[[str], object]) -> Decision | None:
        """Returns what of it can be applied to a program; calls `lose` with each problem."""
        problem = self.problem(program)
        if problem:
            lose(problem)
        return None if problem else self

    @classmethod
    def walked(cls, row: Row, visit: Visit) -> Any:
        """Replaces the references of a row of this kind, see `references.walk`."""
        return walk(row, cls, visit)


def apply(stage: Stage, decisions: Iterable[Decision], change: Change = UNCHANGED) -> Stage:
    """Returns the stage after decisions, in order.

    Those in a row that are over classes share the classes of the stage before them.
    """
    todo = (decision.changed(change) for decision in decisions)
    kept = (decision for decision in todo if decision is not None)
    for over_classes, group in itertools.groupby(kept, key=lambda each: each.over_classes):
        if over_classes:
            stage = _take(stage, list(group))
        else:
            for decision in group:
                stage = decision.apply(stage)
    return stage


def actions(stage: Stage, decisions: Iterable[Decision]) -> Iterator[Action]:
    """Returns where decisions put axes, applied in order."""
    for decision in decisions:
        yield from decision.actions(stage)
        if not decision.over_classes:
            stage = decision.apply(stage)


def _take(stage: Stage, decisions: Sequence[Decision]) -> Stage:
    graph, tiling = stage.folded
    propagator = stage.propagator(graph)
    for decision in decisions:
        tiling = decision.take(propagator, tiling).tiling.pinning(tiling.pinned)
    return stage.at(assignment(graph, tiling))


# ------------------------------------------------------------------------------------ as JSON data


def kinds() -> dict[str, type[Decision]]:
    """Returns all kinds of decisions, by their tags."""
    found: dict[str, type[Decision]] = {}
    waiting = list(Decision.__subclasses__())
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found[str(kind.__struct_config__.tag)] = kind
    return found


def to_row(decision: Decision, names: Sequence[str]) -> dict[str, Any]:
    """Returns a decision as JSON data, with the names of axes in place of their numbers."""

    def visit(refers: Refers, item: Any, row: Row) -> Any:
        return names[item] if refers == "axis" else item

    row: dict[str, Any] = translated(msgspec.to_builtins(decision), visit)
    return row


def translated(row: Row, visit: Visit) -> Any:
    """Replaces the references of a decision given as JSON data, those of nested ones included.

    Args:
      row: the data, of any kind.
      visit: what to replace a reference with, see `references.walk`.

    Returns:
      The data; `LOST` if what the decision is about is.

    Raises:
      msgspec.ValidationError: there is no such kind.
    """

    def inner(refers: Refers, item: Any, within: Row) -> Any:
        return translated(item, visit) if refers == TAG else visit(refers, item, within)

    return _kind_of(row).walked(row, inner)


def from_row(row: Row) -> Decision:
    """Returns the decision of JSON data, with axes by number.

    Raises:
      msgspec.ValidationError: it is none.
    """

    def inner(refers: Refers, item: Any, within: Row) -> Any:
        return from_row(item) if refers == TAG else item

    kind = _kind_of(row)
    return msgspec.convert(kind.walked(row, inner), kind, strict=True)


def _kind_of(row: Any) -> type[Decision]:
    tag = row.get(TAG) if isinstance(row, dict) else None
    known = kinds()
    if tag not in known:
        raise msgspec.ValidationError(
            f"expected an object with a field `{TAG}`, one of {', '.join(sorted(known))}"
        )
    return known[tag]
