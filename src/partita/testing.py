"""Tests of plans: a plan is compared with a file, as a snapshot test compares an output.

`partita.testing.assert_plan` fails when a change of the model has changed its plan, and its message
is what to read in the review.
"""

from __future__ import annotations

import os
from numbers import Real
from pathlib import Path

from partita.errors import OptionError, PlanChangedError
from partita.frontend.calling import Marked
from partita.options import wrong
from partita.plan import Plan
from partita.saved import table
from partita.saved.check import MEMORY, STEP, PlanCheck, compare
from partita.saved.restore import read_plan

UPDATE = "PARTITA_UPDATE_PLANS"
"""The variable of the environment that has files written in place of being compared."""


def check_plan(
    plan: Plan, path: str | Path, step: float = STEP, memory: float = MEMORY
) -> PlanCheck:
    """Compares as `assert_plan` does, without an error if the plan has changed.

    Raises:
      FileError: the file is missing or damaged.
      OptionError: a tolerance is no number of at least 1.
    """
    _tolerances(step, memory)
    if not isinstance(plan, Plan):
        raise wrong("plan", plan, "a plan")
    before = read_plan(path).table
    names = (str(path), plan.program.name)
    donated = Marked.of(None, None, plan.donate_argnums, plan.donate_argnames)
    after = table(plan.done, donated, plan.closed_over)
    return compare(before, after, names, step, memory, plan.not_kept)


def assert_plan(plan: Plan, path: str | Path, step: float = STEP, memory: float = MEMORY) -> None:
    """Holds a plan to the file that `Plan.save` wrote: for tests, and so for CI.

    It fails if an argument or result is sharded otherwise, is new or gone, a collective has been
    added, the mesh or device type is another, or time or memory have grown past the tolerance.
    With `PARTITA_UPDATE_PLANS=1` in the environment the file is written instead.

    Args:
      plan: as it is now.
      path: of the plan file.
      step: how many times as long a step may take as in the file.
      memory: how many times as much peak memory it may need.

    Raises:
      PlanChangedError: an `AssertionError` whose message is the difference, as a diff.
      FileError: the file is missing or damaged.
    """
    if os.environ.get(UPDATE, "0") not in ("", "0"):
        plan.save(path)
        return
    found = check_plan(plan, path, step, memory)
    if not found.passed:
        raise PlanChangedError(f"{found}\n{UPDATE}=1 takes it over")


def _tolerances(step: float, memory: float) -> None:
    for name, value in (("step", step), ("memory", memory)):
        if not isinstance(value, Real) or isinstance(value, bool) or not value >= 1:
            raise wrong(name, value, "a factor of at least 1, such as 1.05", OptionError)
