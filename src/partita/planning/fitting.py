"""What does not fit by its layouts alone is run in micro-batches: how many is decided here.

More micro-batches take less memory for activations, and more time: products become smaller, and
what is gathered for each is gathered more often. So numbers are tried from few to many, each with a
small part of the search's budget. The whole budget is spent on the first number that fits, and the
quicker of that plan and the one with twice as many is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from partita.errors import TacticError
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled
from partita.tactics import AutomaticPartition, Microbatch, Tactic
from partita.text import size

LOOK = 100
"""Plans that a search may estimate to find out whether a number of micro-batches fits."""

LEAST_GAIN = 0.02
"""Least share of the memory that twice as many micro-batches have to free, to go on."""


Planned = tuple[Scheduled, tuple[MeshCandidate, ...]]
"""A schedule, and the meshes that were tried for it."""

Run = Callable[[Sequence[Tactic]], Planned]
"""Applies tactics to a program."""


def fitted(run: Run, tactics: Sequence[Tactic]) -> Planned:
    """Returns the schedule of tactics, with micro-batches where it does not fit without.

    `Microbatch` without a number of steps in the schedule gets the number. If there is none, but a
    search that decides more than layouts, one is added in case that the plan does not fit.

    Args:
      run: applies tactics to the program, over a mesh or over the best one.
      tactics: the schedule.
    """
    asked = [each for each in tactics if isinstance(each, Microbatch)]
    if any(each.steps is not None for each in asked) or not (asked or _decides(tactics)):
        return run(tactics)
    rest = [each for each in tactics if not isinstance(each, Microbatch)]
    whole = run(rest)
    if whole[0].estimate.fits:
        return whole
    return _Steps(run, rest, asked[0] if asked else Microbatch(), whole).run()


def _decides(tactics: Sequence[Tactic]) -> bool:
    """Returns whether a search among tactics may decide more than layouts."""
    return any(isinstance(each, AutomaticPartition) and not each.layouts_only for each in tactics)


class _Steps:
    """Numbers of micro-batches, and the plan with each."""

    def __init__(
        self, apply: Run, rest: Sequence[Tactic], chosen: Microbatch, whole: Planned
    ) -> None:
        self.apply, self.rest, self.chosen, self.whole = apply, rest, chosen, whole
        self.before = whole[0].estimate
        """Estimate without micro-batches."""

    def run(self) -> Planned:
        """Returns the quickest plan that fits; that without micro-batches if none does."""
        steps = self._least()
        if steps is None:
            return self.whole
        tried = (self._plan(number) for number in (steps, 2 * steps))
        fits = [each for each in tried if each is not None and each[0].estimate.fits]
        return min(fits, key=lambda each: each[0].estimate.step_time, default=self.whole)

    def _least(self) -> int | None:
        """Returns the smallest number with which a plan fits, as far as a short search sees."""
        peak = float(self.before.peak_memory)
        for steps in self._numbers():
            looked = self._plan(steps, look=True)
            if looked is None or looked[0].estimate.peak_memory > peak * (1 - LEAST_GAIN):
                return None
            if looked[0].estimate.fits:
                return steps
            peak = float(looked[0].estimate.peak_memory)
        return None

    def _numbers(self) -> Iterator[int]:
        """Yields numbers of micro-batches to try: at least so many that activations may fit."""
        held = self.before.argument_memory + self.before.constant_memory
        room, rows, steps = self.before.capacity - held, self._rows(), 2
        if room <= 0 or not rows:
            return
        while 2 * steps * room < self.before.peak_memory - held:
            steps *= 2
        while rows % steps == 0:
            yield steps
            steps *= 2

    def _rows(self) -> int:
        """Returns the number of examples; 0 if no argument holds any."""
        try:
            return self.chosen.rows(self.whole[0].before(0))
        except TacticError:
            return 0

    def _plan(self, steps: int, look: bool = False) -> Planned | None:
        """Returns the plan with so many micro-batches; None if there is none."""
        reason = f"without them {size(self.before.peak_memory)}, which does not fit"
        batches = dataclasses.replace(self.chosen, steps=steps, reason=reason)
        tactics = [_quick(each) if look else each for each in self.rest]
        try:
            return self.apply([batches, *tactics])
        except TacticError:
            return None


def _quick(tactic: Tactic) -> Tactic:
    """The same tactic with a small budget, if it searches."""
    if not isinstance(tactic, AutomaticPartition):
        return tactic
    return dataclasses.replace(tactic, budget=min(tactic.budget, LOOK), workers=1)
