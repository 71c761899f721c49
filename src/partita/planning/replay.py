"""Applies the decisions of a schedule again, with a change; no tactic is needed.

So it does not matter what a tactic is, whether it has searched, or whether it is still there: a
plan from a file has decisions only. All decisions but the changed one stay. What axes come to
by them is found again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from partita.decisions import UNCHANGED, Change, Layouts, Stage, apply
from partita.planning.schedule import Scheduled


class Replay:
    """Applies the decisions of a schedule's history again."""

    def __init__(self, done: Scheduled) -> None:
        self.done = done
        self._faithful: dict[int, bool] = {}

    def from_tactic(
        self, position: int, change: Change = UNCHANGED, pins: Iterable[tuple[int, int]] = ()
    ) -> Stage | None:
        """The end of the schedule, decided again from a tactic on.

        Args:
          position: of the tactic in the history. What it leaves out by the change, only it leaves
            out; what the change says of roles holds from there on.
          change: what is decided otherwise.
          pins: `(value, axis)` pairs that are pinned from there on.

        Returns:
          None if decisions of a tactic from there on do not lead to what it decided, see `opaque`.
        """
        if self.opaque(position) is not None:
            return None
        stage = self.done.before(position).pinned(pins)
        for entry in self.done.history[position:]:
            stage = apply(stage, entry.decided, change)
            change = Change(roles=change.roles)
        return dataclasses.replace(stage, memory=self.done.stage.memory)

    def opaque(self, position: int) -> int | None:
        """The first tactic from a position on whose decisions do not say how it got its layouts.

        They lead to others, or are layouts themselves.
        """
        history = self.done.history
        for number in range(position, len(history)):
            layouts = any(isinstance(each, Layouts) for each in history[number].decided)
            if layouts or not self.is_faithful(number):
                return number
        return None

    def is_faithful(self, number: int) -> bool:
        """Returns whether the decisions of a tactic, unchanged, lead to its assignment."""
        if number not in self._faithful:
            entry = self.done.history[number]
            again = apply(self.done.before(number), entry.decided)
            self._faithful[number] = again.assignment == entry.assignment
        return self._faithful[number]
