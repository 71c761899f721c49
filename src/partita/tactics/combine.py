"""Tactics made of others: one after the other, or while values are pinned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from partita.decisions import DecisionGroup, Stage
from partita.tactics.protocol import Outcome, Suggestion, Tactic
from partita.tiling import Assignment


def joined(outcomes: Sequence[Outcome], assignment: Assignment) -> Outcome:
    """Joins several outcomes into one; equal entries once.

    Args:
      outcomes: of steps that were taken one after the other.
      assignment: where they led.
    """

    def every(field: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(item for o in outcomes for item in getattr(o, field)))

    apart = ("assignment", "memory", "decided", "more_refused", "search", "context")
    said = (field.name for field in dataclasses.fields(Outcome) if field.name not in apart)
    memory = [o.memory for o in outcomes if o.memory is not None]
    return Outcome(
        assignment,
        **{field: every(field) for field in said},
        memory=memory[-1] if memory else None,
        decided=tuple(decision for o in outcomes for decision in o.decided),
        more_refused=lambda: tuple(refusal for o in outcomes for refusal in o.more_refused()),
        search=next((o.search for o in outcomes if o.search is not None), None),
        context=next((o.context for o in reversed(outcomes) if o.context is not None), None),
    )


def in_turn(stage: Stage, tactics: Iterable[Tactic]) -> Outcome:
    """Applies tactics one after the other; returns one outcome."""
    outcomes: list[Outcome] = []
    for tactic in tactics:
        outcome = tactic.apply(stage)
        if outcomes:
            before = joined(outcomes, stage.assignment)
            outcomes.append(_from(before, outcome))
        else:
            outcomes.append(outcome)
        stage = stage.after(outcome)
    return joined(outcomes, stage.assignment)


def while_pinned(
    stage: Stage, pins: Iterable[tuple[int, int]], tactics: Iterable[Tactic]
) -> Outcome:
    """Applies tactics one after the other, with values pinned meanwhile; returns one outcome.

    Args:
      stage: what has been decided so far.
      pins: `(value, axis)` pairs. Those that are pinned already stay so.
      tactics: what to apply.
    """
    pins = frozenset(pins)
    outcome = in_turn(stage.pinned(pins), tactics)
    return dataclasses.replace(
        outcome,
        assignment=stage.at(outcome.assignment).unpinned(pins - stage.assignment.pinned).assignment,
        decided=(DecisionGroup(outcome.decided, tuple(sorted(pins))),),
    )


@dataclasses.dataclass(frozen=True)
class _From:
    """A tactic that starts from what tactics before it decided, wherever it is applied."""

    before: Outcome
    tactic: Tactic

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.tactic.name

    def apply(self, stage: Stage) -> Outcome:
        """Applies the tactic there."""
        outcome = self.tactic.apply(stage.at(self.before.assignment))
        decided = (*self.before.decided, *outcome.decided)
        return dataclasses.replace(outcome, decided=decided)


def _from(before: Outcome, outcome: Outcome) -> Outcome:
    """An outcome whose suggestions start from an earlier one, wherever they are applied."""

    def moved(suggestion: Suggestion) -> Suggestion:
        return dataclasses.replace(suggestion, tactic=_From(before, suggestion.tactic))

    refused = tuple(
        dataclasses.replace(refusal, suggestions=tuple(map(moved, refusal.suggestions)))
        for refusal in outcome.refused
    )
    return dataclasses.replace(outcome, refused=refused)
