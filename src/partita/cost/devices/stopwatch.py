"""Timing of operations on the devices at hand: the best of several runs.

Other work of the machine only ever makes them slower.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

from partita.errors import HardwareError
from partita.options import integer, wrong

MOST_SECONDS = 3600
"""The longest time to measure one operation."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """Time and runs to spend on measurements."""

    seconds: float = 0.3
    """Seconds for each operation; larger ones are tried until one run takes a tenth of it."""
    runs: int = 5
    """Number of times that each operation is timed; the best time counts."""

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds <= MOST_SECONDS):
            raise wrong("seconds", self.seconds, f"a time above 0, of at most {MOST_SECONDS} s")
        integer(self.runs, "runs", 1)


def rate(cases: Iterable[tuple[Callable[[], Any], float]], budget: Budget) -> float:
    """Returns the work per second of the largest case for which there is time."""
    best = 0.0
    for run, work in cases:
        seconds = best_of(run, budget)
        best = max(best, work / seconds)
        if seconds > budget.seconds / 10:
            break
    if not math.isfinite(best) or best <= 0:
        raise HardwareError("the clock of this machine is too coarse to measure anything")
    return best


def best_of(run: Callable[[], Any], budget: Budget) -> float:
    """Returns the seconds of the quickest run, after one that compiles."""
    jax.block_until_ready(run())
    found = math.inf
    end = time.perf_counter() + budget.seconds
    for number in range(1000):
        start = time.perf_counter()
        jax.block_until_ready(run())
        found = min(found, time.perf_counter() - start)
        if number + 1 >= budget.runs and time.perf_counter() > end:
            break
    return found
