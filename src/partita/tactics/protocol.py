"""Tactics: each takes a stage, decides something, and reports it.

A new tactic is one file with one class that has a `name` and an `apply`. What it decided is in its
`Outcome` twice: as the layouts that came of it, and as decisions (`partita.decisions`), from which
the same can be decided again, or with a change. So whoever asks what another decision would cost
needs no tactic, and a plan from a file has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from partita.cost import Estimate
from partita.decisions import Action, Context, Decision, Stage
from partita.errors import FormerName
from partita.escape import printed
from partita.mesh import Mesh
from partita.search.record import SearchRecord
from partita.text import seconds, size
from partita.tiling import Assignment


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A suggestion of a refusal: what to do instead of the tactic, and what that would cost."""

    text: str
    tactic: Tactic = dataclasses.field(repr=False, compare=False)
    """What to apply in place of the tactic that was refused something."""
    mesh: Mesh | None = None
    """The mesh that it is for, if that is another one. What was decided before stays as it is."""
    estimate: Estimate | None = dataclasses.field(default=None, repr=False, compare=False)
    """Cost of the plan up to and with it; None if it has not been estimated."""

    @printed
    def __str__(self) -> str:
        if self.estimate is None:
            return self.text
        time, peak = seconds(self.estimate.step_time), size(self.estimate.peak_memory)
        return f"{self.text}: step {time}, peak {peak}"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A request that was not met: what was asked, why not, and what would be possible instead."""

    what: str
    reason: str
    instead: str = ""
    axis: str = ""
    """The axis that was requested, if the request was for one."""
    seeds: tuple[tuple[int, int], ...] = ()
    """The `(value, dimension)` pairs that were requested."""
    suggestions: tuple[Suggestion, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """What to do instead, where a size is in the way; refusals of one cause have the same."""

    @printed
    def __str__(self) -> str:
        return f"{self.what}: {self.reason}" + (f" ({self.instead})" if self.instead else "")

    alternatives = FormerName("suggestions")


@dataclasses.dataclass(frozen=True)
class Blocked:
    """Places at which an axis stopped propagating for one reason."""

    axis: str
    reason: str
    count: int
    """Number of operations and values that it did not reach for this reason."""
    example: str
    """The first of them, in the user's words."""

    @property
    def is_composition(self) -> bool:
        """True if earlier decisions have the axis there, which is how tactics compose."""
        return self.reason == f"{self.axis} is already used there"

    @printed
    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.axis} at {self.example}{more}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a tactic."""

    assignment: Assignment
    """The layout of every operation and value after the tactic."""
    decisions: tuple[str, ...] = ()
    """Choices of the tactic in words, one line each."""
    refused: tuple[Refusal, ...] = ()
    """Requests that were not met, with the reasons."""
    conflicts: tuple[str, ...] = ()
    """Conflicts that were met and not resolved, with the choices."""
    warnings: tuple[str, ...] = ()
    """Warnings: requests that were met, but cost more than they seem to."""
    actions: tuple[Action, ...] = ()
    """The tile actions, in order."""
    blocked: tuple[Blocked, ...] = ()
    """Places where propagation stopped."""
    resolved: tuple[str, ...] = ()
    """Conflicts that were met and resolved, with the role that got the axis."""
    memory: int | None = None
    """Bytes per device that the plan may use from here on; None leaves that as it is."""
    decided: tuple[Decision, ...] = ()
    """The decisions as data: applied in order, they lead from the stage before to `assignment`."""
    more_refused: Callable[[], tuple[Refusal, ...]] = dataclasses.field(
        default=tuple, compare=False, repr=False
    )
    """Finds further refusals, which takes time: called only for a plan that is taken."""
    search: SearchRecord | None = dataclasses.field(default=None, compare=False, repr=False)
    """Record of the search, if the tactic was one; not kept in plan files."""
    context: Context | None = dataclasses.field(default=None, compare=False, repr=False)
    """Context of the program after the tactic, if it has changed the program."""

    directives = FormerName("decided")


class Tactic(Protocol):
    """A part of a partitioning strategy, written apart from the model.

    One that searches says so by an attribute `searches`, which is true. It may have a method
    `candidates(stage, searched)`, too, as `AutomaticPartition` has: outcomes that it could have had
    at a stage, best first, of what its search record says.
    """

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def apply(self, stage: Stage) -> Outcome:
        """Decides something, on top of what has been decided already.

        Raises:
          AxisError, UnknownNameError, TacticError: if it does not fit the mesh or the program.
        """
        ...


def changes_program(tactic: Tactic) -> bool:
    """Returns whether a tactic has a true attribute `changes_program`.

    It goes first then: what the program says itself of how it is sharded is said of the program
    that it makes.
    """
    return bool(getattr(tactic, "changes_program", False))


def searches(tactic: Tactic) -> bool:
    """Returns whether a tactic has a true attribute `searches`.

    What the program says itself of how it is sharded goes first then, as for `AutomaticPartition`.
    """
    return bool(getattr(tactic, "searches", False))
