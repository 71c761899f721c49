"""How far a plan is from the best one that there can be: a lower bound on step times."""

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
"""Passes of messages at most."""

FEW = 8
"""Passes for each weight of compute against links that is tried, and without a gain at the end."""

WEIGHTS = 6
"""How many weights are tried at most."""

GAIN = 1e-4
"""What few passes have to gain for more to follow."""

STEP = 0.3
"""How far what several uses share moves to where a round of choices has it."""

PLANS = (0.95, 0.8, 0.6)
"""Weights of compute for which layouts are proposed: links count for something, too."""

ROUNDING = 1e-9
"""Relative error of sums of floating-point numbers, and more."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """What no plan of a problem takes less than, by the cost model."""

    seconds: float
    """Below the step time of every plan that moves lead to, whether it fits in memory or not."""
    tilings: tuple[Tiling, ...]
    """Layouts, free for every class, that came up on the way. They cost more than the bound says,
    some of them little more than the best plan, and no moves may lead there."""

    def gap(self, step_time: float) -> float:
        """How much longer a step takes than the bound, as a share of the bound at most."""
        return step_time / self.seconds - 1 if self.seconds > 0 else float("inf")

    def told(self, step_time: float) -> str:
        """What a step time is, in words: optimal only if the bound proves it."""
        gap = self.gap(step_time)
        if gap <= NOISE:
            return "optimal: no plan takes less"
        if math.isinf(gap):
            return "how far from the best possible is not known"
        return f"at most {gap:.1%} above the best possible: no plan takes less than " + seconds(
            self.seconds
        )


def relaxed_problem(problem: Problem) -> Relaxed | None:
    """The relaxed problem; None where it is too large."""
    try:
        return Relaxed(problem)
    except TooLargeError:
        return None


def lower_bound(
    problem: Problem, rounds: int = ROUNDS, relaxed: Relaxed | None = None
) -> Bound | None:
    """A lower bound on the step times of all plans of a problem; None where it is too large.

    That of the relaxed problem, for the weights of compute and links that give the highest. For
    plans in which all members of a class have one layout, and in which what does not divide is not
    split, as those that a search finds.

    Args:
      problem: what is searched.
      rounds: passes of messages at most; more give a better bound.
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
        """All choices that were near a bound."""

    def run(self, weight: float, count: int) -> float:
        """Some passes at a weight; the best bound of them."""
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
