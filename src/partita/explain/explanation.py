"""`explain`: what was asked for, found and explained."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, overload

from partita.errors import UnknownNameError
from partita.escape import printed
from partita.explain.alternatives import Costing
from partita.explain.collectives import CollectiveExplanation, explain_group
from partita.explain.values import ValueExplanation, explain_values
from partita.explain.view import CollectiveGroup, PlanView
from partita.planning.schedule import Scheduled
from partita.spmd import Collective

EVERY = "collectives"
"""Placeholder for all collectives of a plan."""

ALTERNATIVES = 6
"""Number of alternatives whose cost is estimated by default."""

Entry = ValueExplanation | CollectiveExplanation


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation(Sequence[Entry]):
    """A sequence of `ValueExplanation`s or `CollectiveExplanation`s that prints as text."""

    entries: tuple[Entry, ...]

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        return self.entries[index]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def as_dicts(self) -> list[dict[str, Any]]:
        """The same as plain data that JSON can hold, one dict for each entry."""
        return [dataclasses.asdict(entry) for entry in self.entries]

    @printed
    def __str__(self) -> str:
        return "\n\n".join(map(str, self.entries)) or "no collectives"

    @printed
    def __repr__(self) -> str:
        return f"<Explanation of {len(self.entries)} entries>"


def explain(done: Scheduled, what: str | int | Collective, budget: int) -> Explanation:
    """Explains values or collectives of a plan.

    Args:
      done: the scheduled plan.
      what: a name or pattern, `%123`, `file.py:12`, a collective or its number, or `collectives`.
      budget: most alternatives to estimate.

    Raises:
      UnknownNameError: no value or collective matches.
    """
    view = PlanView(done)
    if isinstance(what, str):
        return Explanation(tuple(_named(view, what, budget)))
    if isinstance(what, Collective):
        known = done.spmd.collectives
        if what.index >= len(known) or known[what.index] != what:
            raise UnknownNameError(
                f"{what} is not a collective of this plan, but of another; explain it there"
            )
        what = what.index
    return Explanation((_collective(view, what, budget),))


def _named(view: PlanView, what: str, budget: int) -> Sequence[Entry]:
    named = what in view.names.values()
    if what == EVERY and not named:
        return _collectives(view, budget)
    if not named and (number := re.fullmatch(r"#?(\d+)", what)):
        return [_collective(view, int(number[1]), budget)]
    return explain_values(view, view.select(what))


def _collective(view: PlanView, index: int, budget: int) -> CollectiveExplanation:
    count = len(view.done.spmd.collective_steps)
    if not 0 <= index < count:
        those = f"numbered 0 to {count - 1}" if count else "none at all"
        if count <= index < len(view.done.spmd.collectives):
            inside = view.done.spmd.collectives[index]
            raise UnknownNameError(
                f"collective {index} is no decision of the plan: the program has it {inside.value}"
            )
        raise UnknownNameError(f"there is no collective {index}; the plan has {count}, {those}")
    group = next(group for group in view.groups if index in group.indices)
    return explain_group(view, group, Costing(view.done, budget), index)


def _collectives(view: PlanView, budget: int) -> list[CollectiveExplanation]:
    """All collectives, those that take longest first."""
    costing = Costing(view.done, budget)

    def time(group: CollectiveGroup) -> float:
        return -sum(view.seconds(reshard) * reshard.times for reshard in group.reshards)

    return [explain_group(view, group, costing) for group in sorted(view.groups, key=time)]
