"""What does not fit by its layouts alone is run in micro-batches: how many is decided here.

More micro-batches take less memory for activations, and more time: products become smaller, and
what is gathered for each is gathered more often. So numbers are tried from few to many, each with a
small part of the search's budget. The whole budget is spent on the first number that fits, and the
quicker of that plan and the one with twice as many is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partita.decisions import Progress, silent
from partita.errors import TacticError
from partita.planning.prepare import Prepared
from partita.planning.schedule import Scheduled
from partita.tactics import AutomaticPartition, Microbatch, Tactic
from partita.text import size

LOOK = 100
"""Plans that a search may estimate to find out whether a number of micro-batches fits."""

LEAST_GAIN = 0.02
"""Least share of the memory that twice as many micro-batches have to free, to go on."""


def fitted(prepared: Prepared, tactics: Sequence[Tactic], progress: Progress = silent) -> Scheduled:
    """Returns the schedule of tactics, with micro-batches where it does not fit without.

    `Microbatch` without a number of steps in the schedule gets the number. If there is none, but a
    search that decides more than layouts, one is added in case that the plan does not fit.
    """
    asked = [each for each in tactics if isinstance(each, Microbatch)]
    if any(each.steps is not None for each in asked) or not (asked or _decides(tactics)):
        return prepared.schedule(tactics, progress)
    rest = [each for each in tactics if not isinstance(each, Microbatch)]
    whole = prepared.schedule(rest, progress)
    if whole.estimate.fits:
        return whole
    chosen = asked[0] if asked else Microbatch()
    return _Steps(prepared, rest, chosen, progress).run(whole)


def _decides(tactics: Sequence[Tactic]) -> bool:
    """Returns whether a search among tactics may decide more than layouts."""
    return any(isinstance(each, AutomaticPartition) and not each.layouts_only for each in tactics)


class _Steps:
    """Numbers of micro-batches, and the plan with each."""

    def __init__(
        self, prepared: Prepared, rest: Sequence[Tactic], chosen: Microbatch, progress: Progress
    ) -> None:
        self.prepared, self.rest, self.chosen, self.progress = prepared, rest, chosen, progress

    def run(self, whole: Scheduled) -> Scheduled:
        """Returns the quickest plan that fits; that without micro-batches if none does."""
        found, peak = None, float(whole.estimate.peak_memory)
        for steps in self._numbers(whole):
            looked = self._plan(steps, whole, look=True)
            if looked is None:
                return whole
            if looked.estimate.fits:
                found = steps
                break
            if looked.estimate.peak_memory > peak * (1 - LEAST_GAIN):
                return whole
            peak = float(looked.estimate.peak_memory)
        if found is None:
            return whole
        tried = (self._plan(steps, whole) for steps in (found, 2 * found))
        fits = [each for each in tried if each is not None and each.estimate.fits]
        return min(fits, key=lambda each: each.estimate.step_time, default=whole)

    def _numbers(self, whole: Scheduled) -> Iterator[int]:
        """Yields numbers of micro-batches to try: at least so many that activations may fit."""
        estimate = whole.estimate
        held = estimate.argument_memory + estimate.constant_memory
        room = estimate.capacity - held
        rows = self._rows(whole)
        steps = 2
        while room > 0 and 2 * steps * room < estimate.peak_memory - held:
            steps *= 2
        while room > 0 and rows and rows % steps == 0:
            yield steps
            steps *= 2

    def _rows(self, whole: Scheduled) -> int:
        """Returns the number of examples; 0 if no argument holds any."""
        try:
            return self.chosen.rows(whole.before(0))
        except TacticError:
            return 0

    def _plan(self, steps: int, whole: Scheduled, look: bool = False) -> Scheduled | None:
        """Returns the plan with so many micro-batches; None if there is none."""
        reason = f"without them {size(whole.estimate.peak_memory)}, which does not fit"
        batches = dataclasses.replace(self.chosen, steps=steps, reason=reason)
        tactics = [_quick(each) if look else each for each in self.rest]
        try:
            return self.prepared.schedule([batches, *tactics], self.progress)
        except TacticError:
            return None


def _quick(tactic: Tactic) -> Tactic:
    """The same tactic with a small budget, if it searches."""
    if not isinstance(tactic, AutomaticPartition):
        return tactic
    return dataclasses.replace(tactic, budget=min(tactic.budget, LOOK), workers=1)
