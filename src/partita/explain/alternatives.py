"""Alternatives to a plan: one decision changed, all others kept, and the result estimated.

The decisions of the tactics are replayed from the changed one on, see `planning.replay`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from partita.cost import Estimate
from partita.decisions import UNCHANGED, Change, Context, Decision, Request, Stage, apply
from partita.escape import printed
from partita.garbage import paused
from partita.planning.replay import Replay
from partita.planning.schedule import Scheduled, lower_and_cost
from partita.spmd import Lowering
from partita.tactics import place
from partita.text import seconds, size


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Estimated cost of a plan with one decision changed. Seconds, and bytes per device."""

    change: str
    """Changed decision, in words."""
    collectives: tuple[str, ...]
    """Collectives that would move the value then."""
    step_time: float
    peak_memory: int
    fits: bool
    step_time_change: float
    """Against the plan; negative if the alternative is quicker."""
    peak_memory_change: int

    @printed
    def __str__(self) -> str:
        time, memory = self.step_time_change, self.peak_memory_change
        over = "" if self.fits else ", DOES NOT FIT"
        return (
            f"{_signed(time, seconds)} a step, {_signed(memory, size)}{over}: {self.change}\n"
            f"  moves it then: {', '.join(self.collectives) or 'nothing'}"
        )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A change whose cost can be estimated. Fields that are empty change nothing."""

    text: str = dataclasses.field(compare=False)
    position: int
    """Index of the first tactic whose decisions are replayed."""
    change: Change = UNCHANGED
    pinned: frozenset[tuple[int, int]] = frozenset()
    """`(value, axis)` pairs: values that are pinned from that tactic on."""
    seeds: frozenset[tuple[int, int, int]] = frozenset()
    """`(value, dimension, axis)` from which axes propagate after the last tactic."""
    decisions: tuple[Decision, ...] = ()
    """Further decisions at the end of the schedule."""


class Costing:
    """Estimates the cost of alternatives of one schedule: at most `budget` of them, each once."""

    def __init__(self, done: Scheduled, budget: int) -> None:
        self.done = done
        self.left = budget
        self.skipped = 0
        """Candidates that were not tried, because the budget was used up."""
        self._replay = Replay(done)
        self._obstacles: dict[Candidate, str] = {}
        self._tried: dict[Candidate, tuple[Lowering, Estimate] | None] = {}
        self._found: dict[object, tuple[Lowering, Estimate]] = {}

    def cost(self, candidate: Candidate) -> tuple[Lowering, Estimate] | None:
        """The alternative lowered and estimated, the same object for equal ones.

        None if nothing changes, if it cannot be known, or if the budget is used up.
        """
        if candidate not in self._tried:
            if self.left < 1:
                self.skipped += 1
                return None
            opaque = self._replay.opaque(candidate.position)
            if opaque is not None:
                self._obstacles[candidate] = self._obstacle(opaque)
                return None
            self.left -= 1
            with paused():
                self._tried[candidate] = self._try(candidate)
        return self._tried[candidate]

    def obstacles(self, candidates: Iterable[Candidate]) -> tuple[str, ...]:
        """Why alternatives that were tried are not known, each reason once."""
        found = (self._obstacles.get(candidate) for candidate in candidates)
        return tuple(dict.fromkeys(reason for reason in found if reason))

    def _obstacle(self, number: int) -> str:
        return (
            f"changes of history[{number}], {self.done.history[number].name}, and of what comes "
            "before it: the decisions of its outcome do not lead to what it decided"
        )

    def _try(self, candidate: Candidate) -> tuple[Lowering, Estimate] | None:
        stage = replay(self._replay, candidate)
        if stage is None:
            return None
        known, now = self.done.stage.assignment, stage.assignment
        key = (now.ops, now.values, now.gathers)
        if key == (known.ops, known.values, known.gathers):
            return None
        if key not in self._found:
            self._found[key] = lower_and_cost(stage)
        return self._found[key]


def replay(schedule: Replay, candidate: Candidate) -> Stage | None:
    """The schedule with one decision changed; None if that cannot be known."""
    stage = schedule.from_tactic(candidate.position, candidate.change, candidate.pinned)
    return None if stage is None else apply(_seeded(stage, candidate), candidate.decisions)


def _seeded(stage: Stage, candidate: Candidate) -> Stage:
    """The stage with further seeds."""
    program = stage.context.analysis.program
    for axis in sorted({axis for *_, axis in candidate.seeds}):
        requests = [
            Request(program.describe(value), value, (dim,))
            for value, dim, a in sorted(candidate.seeds)
            if a == axis
        ]
        stage = stage.after(place(stage, requests, axis))
    return stage


def conflicts_of(context: Context, color: int) -> list[int]:
    """The groups of conflict sets in which a color group meets itself."""
    groups = context.analysis.groups
    return [n for n, held in enumerate(groups.conflict_color) if held == color]


def _signed(value: float, show: Callable[[float], str]) -> str:
    value = 0.0 if abs(value) < 1e-12 else value  # what is left of sums in another order
    return f"{'-' if value < 0 else '+'}{show(abs(value))}"
