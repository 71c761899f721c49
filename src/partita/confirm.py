"""`confirm`: a compiler has the last word between the best different candidates of a search.

Plans near the best differ by less than predictions are exact to. By which of them a compiler makes
the quickest program, it can be asked: nothing is run for that, and the devices need not be there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from partita.decisions import Progress, silent
from partita.errors import VerifyError
from partita.escape import printed
from partita.options import integer, one_or_several
from partita.plan import Plan
from partita.run.executable import Form
from partita.text import Text, new_table, plain, seconds, size

if TYPE_CHECKING:
    from partita.verify import Verification

MOST_SHOWN = 72
"""Characters of a plan's decisions in a table."""


@dataclasses.dataclass(frozen=True, repr=False)
class Confirmed:
    """A plan that was compiled, to compare it with others."""

    plan: Plan
    what: str
    """Origin of the plan, and its decisions, in words."""
    verification: Verification | None
    """Result of compiling the plan; None if that failed."""
    failure: str = ""
    """Error message of the compiler if it failed."""

    @property
    def step_time(self) -> float | None:
        """Seconds of a step as it was compiled; None if it does not fit, or is not known."""
        found = self.verification
        return None if found is None or found.time is None else found.time.step_time

    @property
    def peak_memory(self) -> float | None:
        """Bytes per device as it was compiled, also if they are too many; None if not known."""
        found = self.verification
        if found is None:
            return None
        if found.memory is not None:
            return found.memory.peak
        return None if found.out_of_memory is None else found.out_of_memory.used

    @property
    def fits(self) -> bool:
        """Returns whether the compiled program fits into the memory that the plan may use."""
        found = self.verification
        return found is not None and found.memory is not None and not found.exceeds

    @property
    def rank(self) -> tuple[bool, float]:
        """Order of plans: those that fit by time, the others behind them by peak memory."""
        figure = self.step_time if self.fits else self.peak_memory
        return not self.fits, math.inf if figure is None else figure

    def as_dict(self) -> dict[str, Any]:
        """The same as data for JSON: seconds, and bytes per device."""
        estimate = self.plan.estimate
        return {
            "what": self.what,
            "mesh": dict(self.plan.mesh),
            "predicted_step_time": estimate.step_time,
            "step_time": self.step_time,
            "predicted_peak_memory": estimate.peak_memory,
            "peak_memory": self.peak_memory,
            "fits": self.fits,
            "failure": self.failure or None,
        }

    @printed
    def __repr__(self) -> str:
        time = "no time" if self.step_time is None else seconds(self.step_time)
        return f"<Confirmed: {self.what}: {time}, {'fits' if self.fits else 'does not fit'}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Confirmation:
    """Plans side by side, predicted and compiled, and the one that was taken. Made by `confirm`.

    `print` it for a table.
    """

    plans: tuple[Confirmed, ...]
    """All that were compiled, the plan that was given first."""
    topology: str
    """The devices compiled for."""

    @property
    def taken(self) -> Confirmed:
        """The quickest that fits as it was compiled; if none does, the smallest."""
        return min(self.plans, key=lambda each: each.rank)

    @property
    def plan(self) -> Plan:
        """The plan that was taken."""
        return self.taken.plan

    @property
    def fits(self) -> bool:
        """Returns whether any of the plans fits as it was compiled."""
        return self.taken.fits

    def as_dict(self) -> dict[str, Any]:
        """The table as data for JSON, with the place of the plan that was taken."""
        places = [each is self.taken for each in self.plans]
        rows = [each.as_dict() for each in self.plans]
        return {"topology": self.topology, "taken": places.index(True), "plans": rows}

    def view(self) -> RenderableType:
        """The table as something that rich can print."""
        columns = ["plan", *_FIGURES, ""]
        table = new_table(f"Compiled for {self.topology}", *columns)
        for column in table.columns[1:-1]:
            column.justify = "right"
        for each in self.plans:
            table.add_row(each.what, *self._figures(each), self._remark(each))
        if self.fits:
            return table
        note = Text("None of them fits; the smallest is taken.", style="red")
        return Group(table, Text(), note)

    def _figures(self, each: Confirmed) -> tuple[str, ...]:
        first, estimate = self.plans[0].step_time, each.plan.estimate
        time, peak = each.step_time, each.peak_memory
        change = f"{time / first - 1:+.1%}" if time and first and each is not self.plans[0] else ""
        return (
            seconds(estimate.step_time),
            "-" if time is None else seconds(time),
            change,
            size(estimate.peak_memory),
            "-" if peak is None else size(peak),
        )

    def _remark(self, each: Confirmed) -> str:
        if each.failure:
            return f"failed: {each.failure}"
        words = (["taken"] if each is self.taken else []) + ([] if each.fits else ["DOES NOT FIT"])
        return ", ".join(words)

    @printed
    def __str__(self) -> str:
        return plain(self.view())

    @printed
    def __repr__(self) -> str:
        return f"<Confirmation of {len(self.plans)} plans for {self.topology}: {self.taken!r}>"


_FIGURES = ("step, predicted", "compiled", "change", "peak, predicted", "compiled")


def confirm(
    plan: Plan,
    topology: str | None = None,
    *,
    count: int = 5,
    others: Plan | Sequence[Plan] = (),
    form: Form = "partitioned",
    verbose: bool = False,
    compiler_options: Mapping[str, str | bool] | None = None,
    progress: Progress = silent,
) -> Confirmation:
    """Compiles the best different candidates of a plan, and takes the quickest that fits.

    Nothing is run, and the devices need not be there. Time is what the compiler estimates, or its
    schedule comes to, as for `Plan.verify`.

    Args:
      plan: a plan that a search has made.
      topology: the devices to compile for, as `Plan.verify` takes them.
      count: how many of `plan.candidates` to compile, this plan counted; 1 is this plan alone,
        which then need not come from a search.
      others: further plans of the same program, such as those written by hand; the mesh may be
        another one of as many devices.
      form: which program is compiled, as for `Plan.export`.
      verbose: whether what the compiler logs comes to standard error.
      compiler_options: further options of the compiler, as for `Plan.verify`.
      progress: called with (done, total, text) before each plan is compiled.

    Raises:
      TacticError: the plan comes from no search, or another one is of another program.
      HardwareError, MeshError: a plan is for other devices than the topology has.
      VerifyError: there is no such topology or no compiler for it, the compiler fails for all, or
        nothing tells the time of what it makes, as on host devices.
    """
    plans = _plans(plan, integer(count, "count", 1), one_or_several(others or []))
    found: list[Confirmed] = []
    failures: list[VerifyError] = []
    for number, (what, each) in enumerate(plans):
        progress(number, len(plans), what)
        try:
            made = each.verify(topology, form, verbose=verbose, compiler_options=compiler_options)
        except VerifyError as error:
            failures.append(error)
            found.append(Confirmed(each, what, None, str(error)))
            continue
        if made.memory is not None and made.time is None:
            raise _timeless(made)
        found.append(Confirmed(each, what, made))
    if len(failures) == len(plans):
        raise failures[0]
    return Confirmation(tuple(found), topology or "host devices")


def _plans(plan: Plan, count: int, others: Sequence[Plan]) -> list[tuple[str, Plan]]:
    """All plans to compile, each with what it is."""
    for other in others:
        plan.diff(other)  # complains if it is of another program
    candidates = plan.candidates(count)[1:] if count > 1 else ()
    return [
        ("the plan", plan),
        *((_shown(_decided(each)), each) for each in candidates),
        *((_shown(["given", *(entry.name for entry in each.history)]), each) for each in others),
    ]


def _decided(plan: Plan) -> Sequence[str]:
    """Returns the decisions of a candidate's search."""
    return next(entry.decisions for entry in reversed(plan.history) if entry.search is not None)


def _shown(decisions: Sequence[str]) -> str:
    """Formats a plan's origin and decisions, cut to `MOST_SHOWN` characters."""
    first, *rest = dict.fromkeys(decisions)
    text = f"{first}: {', '.join(rest)}" if rest else first
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def _timeless(made: Verification) -> VerifyError:
    if made.topology is None:
        return VerifyError(
            "nothing tells the time of what is compiled for host devices, by which a plan could be "
            'taken; give topology=, such as "v5e:4x8" or "h100:8"'
        )
    return VerifyError(
        f"nothing tells the time of what is compiled for {made.topology}, by which a plan could be "
        f"taken: the hardware file of {made.plan.hardware.name} has no `clock`"
    )
