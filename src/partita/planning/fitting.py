"""Chooses the number of micro-batches for a plan that does not fit by its layouts alone.

More micro-batches take less memory for activations, and more time: products become smaller, and
what is gathered for each is gathered more often. So numbers are tried from few to many, each with a
small part of the search's budget. The whole budget is spent on the first number that fits, and on
twice as many if that looks quicker.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

from partita.cost import Estimate
from partita.decisions import Progress
from partita.errors import TacticError
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled
from partita.search import EnoughError
from partita.tactics import AutomaticPartition, Microbatch, Outcome, Stage, Tactic
from partita.text import size

LOOK = 100
"""Plans that a search may estimate to find out whether a number of micro-batches fits."""

LEAST_GAIN = 0.02
"""Least share of the memory that twice as many micro-batches have to free, to go on."""


Planned = tuple[Scheduled, tuple[MeshCandidate, ...]]
"""A schedule, and the meshes that were tried for it."""

Run = Callable[[Sequence[Tactic], Progress], Planned]
"""Applies tactics to a program."""


def fitted(run: Run, tactics: Sequence[Tactic], progress: Progress) -> Planned:
    """Returns the schedule of tactics, with micro-batches where it does not fit without.

    `Microbatch` without a number of steps in the schedule gets the number. If there is none, but a
    search that decides more than layouts, one is added in case that the plan does not fit.

    Args:
      run: applies tactics to the program, over a mesh or over the best one.
      tactics: the schedule.
      progress: called while searches run; once it has ended one, no other number is tried.
    """
    told = _Told(progress)
    asked = [each for each in tactics if isinstance(each, Microbatch)]
    if any(each.steps is not None for each in asked) or not (asked or _decides(tactics)):
        return run(tactics, told)
    rest = [each for each in tactics if not isinstance(each, Microbatch)]
    whole = run(rest, told)
    if whole[0].estimate.fits:
        return whole
    return _Steps(run, rest, asked[0] if asked else Microbatch(), whole, told).run()


def _decides(tactics: Sequence[Tactic]) -> bool:
    """Returns whether a search among tactics may decide more than layouts."""
    return any(isinstance(each, AutomaticPartition) and not each.layouts_only for each in tactics)


class _Told:
    """A progress callback that knows whether it has ended a search."""

    def __init__(self, send: Progress) -> None:
        self.ended, self._send = False, send

    def __call__(self, done: int, total: int, text: str) -> None:
        try:
            self._send(done, total, text)
        except EnoughError:
            self.ended = True
            raise


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Micro-batches, with the reason for their number."""

    batches: Microbatch
    reason: str
    changes_program: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.batches.name

    def apply(self, stage: Stage) -> Outcome:
        """Applies them, and says why there are so many."""
        outcome = self.batches.apply(stage)
        said = tuple(f"{each}: {self.reason}" for each in outcome.decisions)
        return dataclasses.replace(outcome, decisions=said)


class _Steps:
    """Numbers of micro-batches, and the plan with each."""

    def __init__(
        self, apply: Run, rest: Sequence[Tactic], chosen: Microbatch, whole: Planned, told: _Told
    ) -> None:
        self.apply, self.rest, self.chosen, self.whole, self.told = apply, rest, chosen, whole, told
        self.known: dict[tuple[int, bool], Planned] = {}
        """Plans by the number of micro-batches, and by whether they are short looks."""
        self.before = whole[0].estimate
        """Estimate without micro-batches."""

    def run(self) -> Planned:
        """Returns the quickest plan that fits; that without micro-batches if none does."""
        steps = self._least()
        if steps is None:
            return self.whole
        best = self._plan(steps)
        if best is None or not best[0].estimate.fits:
            best = self.whole
        more = self._plan(2 * steps, look=True)
        if more is not None and _is_quicker(more, best):
            more = self._plan(2 * steps)
        return more if more is not None and _is_quicker(more, best) else best

    def _least(self) -> int | None:
        """Returns the smallest number with which a plan fits, as far as short searches see."""
        rows, steps, last = self._rows(), 1, self.before
        while rows and last.argument_memory + last.constant_memory < last.capacity:
            steps = self._more(steps, last)
            looked = None if rows % steps else self._plan(steps, look=True)
            if looked is None:
                return None
            estimate = looked[0].estimate
            if estimate.fits:
                return steps
            if estimate.peak_memory > last.peak_memory * (1 - LEAST_GAIN):
                return None
            last = estimate
        return None

    def _more(self, steps: int, estimate: Estimate) -> int:
        """Returns the next number to try: the least with which activations alone would fit.

        Args:
          steps: the last number.
          estimate: of the plan with it, which does not fit.
        """
        held = estimate.argument_memory + estimate.constant_memory
        room, activations = estimate.capacity - held, estimate.peak_memory - held
        more = 2 * steps
        while more * room < steps * activations:
            more *= 2
        return more

    def _rows(self) -> int:
        """Returns the number of examples; 0 if no argument holds any."""
        try:
            return self.chosen.rows(self.whole[0].before(0))
        except TacticError:
            return 0

    def _plan(self, steps: int, look: bool = False) -> Planned | None:
        """Returns the plan with so many micro-batches; None if there is none."""
        reason = f"without them {size(self.before.peak_memory)}, which does not fit"
        batches = _Chosen(dataclasses.replace(self.chosen, steps=steps), reason)
        quick = [_quick(each) if look else each for each in self.rest]
        key = steps, quick != self.rest  # a look at a plan that nothing searches is all of it
        if key not in self.known and not self.told.ended:
            with contextlib.suppress(TacticError):
                self.known[key] = self.apply([batches, *quick], self.told)
        return self.known.get(key)


def _is_quicker(one: Planned, other: Planned) -> bool:
    """Returns whether a plan fits, and is quicker than another if that fits."""
    mine, theirs = one[0].estimate, other[0].estimate
    return mine.fits and (not theirs.fits or mine.step_time < theirs.step_time)


def _quick(tactic: Tactic) -> Tactic:
    """The same tactic with a small budget, if it searches."""
    if not isinstance(tactic, AutomaticPartition):
        return tactic
    return dataclasses.replace(tactic, budget=min(tactic.budget, LOOK), workers=1)
