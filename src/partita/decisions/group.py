"""`DecisionGroup`: decisions that go together, of a search or of a tactic that pins values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import msgspec

from partita.decisions.action import Action
from partita.decisions.decision import Change, Decision, actions, apply
from partita.decisions.members import ShardClass, take_each
from partita.decisions.references import Axis, Nested, Value
from partita.decisions.stage import Stage
from partita.program import Program
from partita.tiling import Propagation, Propagator, Tiling

HARD = 30
"""Changes of single classes, more of which make a plan no harder to read."""


class DecisionGroup(Decision, frozen=True, omit_defaults=True, dict=True, tag="group"):
    """Applies decisions in order, while values are pinned, and only then.

    Those over classes share the classes of the stage before them. As a move of a search it has
    changes of single classes only: a plan to start from that no colors describe.
    """

    decisions: tuple[Nested, ...]
    pins: tuple[tuple[Value, Axis], ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Found once: there may be thousands of decisions, and searches look moves up often."""
        return hash((self.decisions, self.pins))

    @property
    def axes(self) -> frozenset[int]:
        """Positions of the axes that it is about."""
        return frozenset().union(*(each.axes for each in self.decisions))

    @property
    def weight(self) -> int:
        """The number of moves it counts as: a plan that is hard to read has to be worth it."""
        return min(len(self.decisions), HARD)

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage after all of them, without the pins."""
        after = apply(stage.pinned(self.pins), self.decisions)
        return after.unpinned(set(self.pins) - stage.assignment.pinned)

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """Returns all classes that change."""
        return take_each(propagator, tiling, self.decisions)

    def changed(self, change: Change) -> Decision | None:
        """Returns it with each of them as a change says."""
        changed = (each.changed(change) for each in self.decisions)
        kept = tuple(each for each in changed if each is not None)
        return msgspec.structs.replace(self, decisions=kept)

    def actions(self, stage: Stage) -> Iterator[Action]:
        """Returns the actions of all of them."""
        yield from actions(stage.pinned(self.pins), self.decisions)

    def problem(self, program: Program) -> str:
        """Returns the first problem of its decisions."""
        return next(filter(None, (each.problem(program) for each in self.decisions)), "")

    def fitting(self, program: Program, lose: Callable[[str], object]) -> Decision:
        """Returns the group of what of its decisions can be applied to a program."""
        found = (each.fitting(program, lose) for each in self.decisions)
        return msgspec.structs.replace(self, decisions=tuple(filter(None, found)))

    def describe(self, stage: Stage) -> str:
        """Returns it in words."""
        if all(isinstance(each, ShardClass) for each in self.decisions):
            many = len(self.decisions)
            return f"layouts of {many} classes of operations and values, each for itself"
        return ", ".join(each.describe(stage) for each in self.decisions)
