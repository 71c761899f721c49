"""Alternatives to a plan: one decision changed, the schedule applied again, and the result priced.

Tactics are applied again as they are, a search's moves without a search. What comes before the
changed decision stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from partita.cost import Estimate
from partita.garbage import paused
from partita.planning.schedule import Scheduled, TacticReport, lower_and_cost
from partita.spmd import Lowering
from partita.tactics import Action, AutomaticPartition, Change, Context, Stage
from partita.tactics.manual import place
from partita.tactics.protocol import UNCHANGED, Request
from partita.tactics.recorded import Recorded
from partita.text import seconds, size
from partita.tiling import Assignment, Propagator, TileAction, assignment


@dataclasses.dataclass(frozen=True)
class Alternative:
    """What a plan would cost if one decision were another. Seconds and bytes per device."""

    change: str
    """What would be decided otherwise, in words."""
    collectives: tuple[str, ...]
    """By what the value would be moved then."""
    step_time: float
    peak_memory: int
    fits: bool
    step_time_change: float
    """Against the plan; negative if the alternative is quicker."""
    peak_memory_change: int

    def __str__(self) -> str:
        time, memory = self.step_time_change, self.peak_memory_change
        over = "" if self.fits else ", DOES NOT FIT"
        return (
            f"{_signed(time, seconds)} a step, {_signed(memory, size)}{over}: {self.change}\n"
            f"  moves it then: {', '.join(self.collectives) or 'nothing'}"
        )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A change that can be priced. Fields that are empty change nothing."""

    text: str = dataclasses.field(compare=False)
    position: int
    """Of the first tactic that is applied again."""
    change: Change = UNCHANGED
    moves: frozenset[TileAction] = frozenset()
    """Moves of a search that are left out."""
    pins: frozenset[tuple[int, int]] = frozenset()
    """`(value, axis)` pairs: values kept whole from that tactic on."""
    seeds: frozenset[tuple[int, int, int]] = frozenset()
    """`(value, dimension, axis)` from which axes propagate after the last tactic."""
    again: bool | None = None
    """Whether copies are gathered again, or kept; by default what is better."""


class Pricing:
    """Prices alternatives of one schedule: at most `budget` of them, each once."""

    def __init__(self, done: Scheduled, budget: int) -> None:
        self.done = done
        self.left = budget
        self.skipped = 0
        """Candidates that were not tried, because the budget was used up."""
        self._tried: dict[Candidate, tuple[Lowering, Estimate] | None] = {}
        self._found: dict[object, tuple[Lowering, Estimate]] = {}

    def price(self, candidate: Candidate) -> tuple[Lowering, Estimate] | None:
        """The alternative lowered and priced, the same object for equal ones.

        None if nothing changes, if it would need a new search, or if the budget is used up.
        """
        if candidate not in self._tried:
            if self.left < 1:
                self.skipped += 1
                return None
            self.left -= 1
            with paused():
                self._tried[candidate] = self._try(candidate)
        return self._tried[candidate]

    def _try(self, candidate: Candidate) -> tuple[Lowering, Estimate] | None:
        stage = replay(self.done, candidate)
        if stage is None:
            return None
        known, now = self.done.stage.assignment, stage.assignment
        same = (known.ops, known.values) == (now.ops, now.values)
        if same and candidate.again is None:
            return None
        key = (now.ops, now.values, candidate.again)
        if key not in self._found:
            self._found[key] = self._priced(stage, candidate.again, same)
        return self._found[key]

    def _priced(self, stage: Stage, again: bool | None, same: bool) -> tuple[Lowering, Estimate]:
        if again is None or not same:
            return lower_and_cost(stage)
        lowering, model = self.done.lowering, self.done.stage.cost_model
        return lowering, model.estimate(model.cost(lowering, again=again), lowering)


def replay(done: Scheduled, candidate: Candidate) -> Stage | None:
    """The schedule with one decision changed.

    None if a part of it would need a new search, or is of a plan from a file.
    """
    stage = done.before(candidate.position)
    plain = stage.context
    pins = stage.assignment.pins | candidate.pins
    now = dataclasses.replace(stage.assignment, pins=pins)
    context = plain.changed(candidate.change)
    for report in done.history[candidate.position :]:
        stage = Stage(context, now)
        if isinstance(report.tactic, AutomaticPartition):
            now = _moved(stage, report.actions, candidate)
        elif isinstance(report.tactic, Recorded) or _searches(report):
            return None
        else:
            now = report.tactic.apply(stage).assignment
    end = Stage(plain, now, done.stage.memory)
    return dataclasses.replace(end, assignment=_seeded(end, candidate))


def _searches(report: TacticReport) -> bool:
    """Whether a tactic has searched inside."""
    return any(action.move is not None for action in report.actions)


def _moved(stage: Stage, actions: Iterable[Action], candidate: Candidate) -> Assignment:
    """Applies the moves of a search, but for those left out."""
    context = stage.context
    graph, tiling = stage.folded
    propagator = Propagator(graph, context.mesh, context.analysis.groups.conflict_groups)
    for action in actions:
        if action.move is not None and action.move not in candidate.moves:
            move = _given(action.move, candidate.change)
            tiling = propagator.tile(tiling, move).tiling
    return assignment(graph, tiling)


def _given(move: TileAction, change: Change) -> TileAction:
    """A move with its conflicts resolved as a change says."""
    given = {conflict: role for conflict, axis, role in change.roles if axis == move.axis}
    roles = tuple((conflict, given.get(conflict, role)) for conflict, role in move.roles)
    return dataclasses.replace(move, roles=roles)


def _seeded(stage: Stage, candidate: Candidate) -> Assignment:
    program = stage.context.analysis.program
    for axis in sorted({axis for *_, axis in candidate.seeds}):
        requests = [
            Request(program.describe(value), value, (dim,))
            for value, dim, a in sorted(candidate.seeds)
            if a == axis
        ]
        stage = Stage(stage.context, place(stage, requests, axis).assignment)
    return stage.assignment


def conflicts_of(context: Context, color: int) -> list[int]:
    """The groups of conflict sets in which a color group meets itself."""
    groups = context.analysis.groups
    return [n for n, held in enumerate(groups.conflict_color) if held == color]


def _signed(value: float, show: Callable[[float], str]) -> str:
    value = 0.0 if abs(value) < 1e-12 else value  # what is left of sums in another order
    return f"{'-' if value < 0 else '+'}{show(abs(value))}"
