"""Lower bound on the step times of all plans: the largest gap between a plan and the best one."""

from __future__ import annotations

import dataclasses
import math

from partita.search.bounds.messages import Messages
from partita.search.bounds.relaxed import Relaxed
from partita.search.bounds.shortest import TooLargeError
from partita.search.problem import NOISE, Problem
from partita.text import seconds
from partita.tiling import Tiling

ROUNDS = 50
"""Most passes of messages."""

FEW = 8
"""Passes for each weight of compute against links, and between two tests for a gain."""

WEIGHTS = 6
"""Most weights to try in the search for the best one."""

GAIN = 1e-4
"""Least relative gain of the bound in `FEW` passes for more to follow."""

STEP = 0.3
"""Step, from 0 to 1, of the shares of several uses towards those of the last choices."""

PLANS = (0.95, 0.8, 0.6)
"""Weights of compute for which layouts are proposed: links count for something, too."""

ROUNDING = 1e-9
"""Upper bound on the relative error of sums of floating-point numbers."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """Lower bound on the step times of all plans of a problem, by the cost model."""

    seconds: float
    """At most the step time of every plan that moves lead to, whether it fits in memory or not."""
    tilings: tuple[Tiling, ...]
    """Tilings found on the way, with free layouts for every class. They cost more than the bound,
    some of them little more than the best plan. Moves may lead to none of them."""

    def gap(self, step_time: float) -> float:
        """Returns the relative gap of a step time to the bound; infinite if the bound is 0."""
        return step_time / self.seconds - 1 if self.seconds > 0 else float("inf")

    def told(self, step_time: float) -> str:
        """Returns the gap of a step time in words: optimal only if the bound proves it."""
        gap = self.gap(step_time)
        if gap <= NOISE:
            return "optimal: no plan takes less"
        if math.isinf(gap):
            return "how far from the best possible is not known"
        return f"at most {gap:.1%} above the best possible: no plan takes less than " + seconds(
            self.seconds
        )


def relaxed_problem(problem: Problem) -> Relaxed | None:
    """Returns the relaxed problem; None if it is too large."""
    try:
        return Relaxed(problem)
    except TooLargeError:
        return None


def lower_bound(
    problem: Problem, rounds: int = ROUNDS, relaxed: Relaxed | None = None
) -> Bound | None:
    """Returns a lower bound on the step times of all plans of a problem; None if it is too large.

    It is that of the relaxed problem, for the weights of compute and links that give the highest.
    It holds for plans as a search finds them: all members of a class have one layout, and no
    dimension is split unevenly.

    Args:
      problem: the problem.
      rounds: the most passes of messages; more give a better bound.
      relaxed: its relaxed problem, if there is one already.
    """
    relaxed = relaxed or relaxed_problem(problem)
    if relaxed is None:
        return None
    search = _Search(relaxed)
    low, high, weight, best = 0.0, 1.0, 1.0, (0.0, 1.0)
    for _ in range(WEIGHTS):
        best = max(best, (search.run(weight, FEW), weight))
        # The bound is concave in the weight, and these are its slope.
        compute, links = relaxed.slope(search.choices)
        low, high = (weight, high) if compute >= links else (low, weight)
        if low == high:
            break
        weight = (low + 3 * high) / 4
    gained = math.inf
    while search.passes < rounds and gained > GAIN * search.best:
        before = search.best
        search.run(best[1], FEW)
        gained = search.best - before
    for weight in PLANS:
        search.run(weight, FEW)
    return Bound(search.best * (1 - ROUNDING), tuple(map(relaxed.tiling, search.seen)))


class _Search:
    """Looks for the best bound of a relaxed problem."""

    def __init__(self, relaxed: Relaxed) -> None:
        self.relaxed = relaxed
        self.messages: Messages | None = None
        self.best, self.passes, self.choices = 0.0, 0, list[int]()
        self.seen: dict[tuple[int, ...], None] = {}
        """Set of all choices that the passes have ended with, in order."""

    def run(self, weight: float, count: int) -> float:
        """Runs `count` passes at a weight, and returns the best bound of them."""
        found = 0.0
        for _ in range(count):
            energy = self.relaxed.energy(weight)
            self.messages = self.messages or Messages(energy)
            bound, self.choices = self.messages.run(energy)
            found = max(found, bound)
            self.seen[tuple(self.choices)] = None
            self.relaxed.share(self.choices, STEP)
            self.passes += 1
        self.best = max(self.best, found)
        return found
