"""What a tactic is: it takes a stage, decides something, and says what it did.

A new tactic is one file with one class that has a `name` and an `apply`. What it decided is in its
`Outcome` twice: as the layouts that came of it, and as `directives`, from which the same can be
decided again, or with a `Change`. So whoever asks what another decision would cost needs no tactic,
and a plan from a file has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

from partita.analysis import Analysis, ClassGraph, discrete
from partita.analysis.describe import Colors, describe
from partita.cost import CostModel, Estimate, Hardware
from partita.cost.timing import Timing
from partita.errors import renamed
from partita.escape import printed
from partita.exclusive import Exclusive
from partita.mesh import Mesh
from partita.program import Operation, Program
from partita.search.record import SearchRecord
from partita.text import seconds, size
from partita.tiling import Assignment, LocalAction, Propagator, TileAction, Tiling, refold

Progress = Callable[[int, int, str], None]
"""Called with (done, total, text) while a tactic works."""


def silent(done: int, total: int, text: str) -> None:
    """The `Progress` of whoever does not ask for one."""


@dataclasses.dataclass(frozen=True)
class Request:
    """An argument or result that should be sharded, on the first of these dimensions that can."""

    name: str
    value: int
    dims: Sequence[int]
    told: str = ""
    """What the user wrote, from which it comes."""
    unless_used: bool = False
    """Whether it is passed over in silence if the axis is in use there already."""


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

    @property
    def alternatives(self) -> tuple[Suggestion, ...]:
        """Former name of `suggestions`."""
        renamed("Refusal.alternatives", "Refusal.suggestions")
        return self.suggestions


@dataclasses.dataclass(frozen=True)
class Action:
    """One tile action: where a tactic put an axis, before it propagates from there."""

    axis: str
    what: str
    """In words: the dimensions named, or the color."""
    seeds: tuple[tuple[int, int], ...] = ()
    """The `(value, dimension)` pairs that it started from."""
    color: int | None = None
    """The color group that was tiled as a whole, if it was one."""
    request: str = ""
    """What the tactic was told, in its own words, if it was: a pattern, or the name of an axis.
    Several actions can come of one request."""
    move: TileAction | LocalAction | None = dataclasses.field(default=None, repr=False)
    """The move of a search."""

    @printed
    def __str__(self) -> str:
        return f"{self.what} -> {self.axis}"


@dataclasses.dataclass(frozen=True)
class Blocked:
    """Where an axis stopped propagation, and why: all places of one reason."""

    axis: str
    reason: str
    count: int
    """How many operations and values it did not reach for this reason."""
    example: str
    """The first of them, in the user's words."""

    @property
    def is_composition(self) -> bool:
        """Whether earlier decisions have the axis there, which is how tactics compose."""
        return self.reason == f"{self.axis} is already used there"

    @printed
    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.axis} at {self.example}{more}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Change:
    """What is decided otherwise when directives are followed again. Empty fields change nothing."""

    without: frozenset[tuple[int, int, int]] = frozenset()
    """`(value, dimension, axis)` seeds that nothing propagates from."""
    without_actions: frozenset[TileAction | LocalAction] = frozenset()
    """Moves of a search that are left out."""
    roles: frozenset[tuple[int, int, int]] = frozenset()
    """`(group of conflict sets, axis, role group)`: the role that gets the axis."""

    def winners(self, axis: int) -> dict[int, int]:
        """For conflicts, the role that gets an axis instead."""
        return {conflict: role for conflict, along, role in self.roles if along == axis}


UNCHANGED = Change()
"""Everything is decided as it was."""


class Directive(Protocol):
    """A decision as data: what to put where, whatever came of it at first.

    It names values, dimensions and axes, not the layouts that it leads to. So it can be followed
    from another stage, and with a change.
    """

    def follow(self, stage: Stage, change: Change) -> Assignment:
        """Where it leads from a stage."""
        ...


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a tactic decided."""

    assignment: Assignment
    decisions: tuple[str, ...] = ()
    """What it chose, in its own words, one line each."""
    refused: tuple[Refusal, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Conflicts that were met and not resolved, with the choices."""
    warnings: tuple[str, ...] = ()
    """What was done as asked, but costs more than it looks."""
    actions: tuple[Action, ...] = ()
    """The tile actions, in order."""
    blocked: tuple[Blocked, ...] = ()
    """Where propagation stopped."""
    resolved: tuple[str, ...] = ()
    """Conflicts that were met and resolved, with the role that got the axis."""
    memory: int | None = None
    """Bytes per device that the plan may use from here on; None leaves that as it is."""
    directives: tuple[Directive, ...] = ()
    """What to follow, in order, to come from the stage before to `assignment`."""
    more_refused: Callable[[], tuple[Refusal, ...]] = dataclasses.field(
        default=tuple, compare=False, repr=False
    )
    """Finds further refusals, which takes time: called only for a plan that is taken."""
    search: SearchRecord | None = None
    """What a search did, if the tactic was one."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What stays the same while a schedule runs."""

    analysis: Analysis
    mesh: Mesh
    hardware: Hardware
    capacity: int
    progress: Progress = silent
    arguments: Any = ((), {})
    """`(args, kwargs)` as a pytree of `ShapeDtypeStruct`s, one for each argument of the program."""
    results: Any = ()
    """The results as a pytree, one leaf for each result of the program."""
    exclusive: Exclusive = dataclasses.field(default_factory=Exclusive, compare=False, repr=False)
    """Held by whoever works on plans of the program, which share caches."""

    def __getstate__(self) -> dict[str, Any]:
        """All but what is found again, and the callback, which is of this process."""
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**known, "progress": silent}

    def over(self, mesh: Mesh) -> Context:
        """The same over another mesh; what no mesh has a say in is not worked out again."""
        other = dataclasses.replace(self, mesh=mesh)
        other.__dict__.update(timing=self.timing, colors=self.colors)
        return other

    @cached_property
    def timing(self) -> Timing:
        """When and how often things happen in the program."""
        return Timing(self.analysis, self.hardware)

    @cached_property
    def colors(self) -> Colors:
        """The analysis in words."""
        return describe(self.analysis)

    @cached_property
    def scanned(self) -> frozenset[int]:
        """Color groups of the dimensions of which a loop reads one index in each iteration."""
        program = self.analysis.program
        return frozenset(
            color
            for op in program.operations
            if op.traits.reads_window
            for factor, color in enumerate(self.analysis.op_colors(op.index))
            if color >= 0 and read_one_by_one(program, op, factor)
        )

    @cached_property
    def single(self) -> Propagator:
        """A propagator over single operations and values."""
        groups = self.analysis.groups.conflict_groups
        return Propagator(discrete(self.analysis), self.mesh, groups)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A program in the middle of a schedule: the context, and what has been decided so far."""

    context: Context
    assignment: Assignment
    memory: int | None = None
    """Bytes per device that the plan may use, if a tactic has said so."""

    @property
    def capacity(self) -> int:
        """Bytes per device that the plan may use."""
        return self.context.capacity if self.memory is None else self.memory

    def after(self, outcome: Outcome) -> Stage:
        """The stage that an outcome leads to."""
        memory = self.memory if outcome.memory is None else outcome.memory
        return Stage(self.context, outcome.assignment, memory)

    def at(self, assignment: Assignment) -> Stage:
        """The stage with other layouts."""
        return dataclasses.replace(self, assignment=assignment)

    def pinned(self, pins: Iterable[tuple[int, int]]) -> Stage:
        """The stage in which further `(value, axis)` pairs are pinned."""
        assigned = self.assignment
        pinned = assigned.pinned.union(pins)
        if pinned == assigned.pinned:
            return self
        return self.at(dataclasses.replace(assigned, pinned=pinned))

    def within(self, memory: int) -> Stage:
        """The stage in which the plan may use so many bytes per device; it is folded alike."""
        other = dataclasses.replace(self, memory=memory)
        other.__dict__.update(folded=self.folded)
        return other

    @property
    def tiling(self) -> Tiling:
        """What has been decided, as a tiling of single operations and values."""
        return Tiling(self.assignment.ops, self.assignment.values, self.assignment.pinned)

    @cached_property
    def folded(self) -> tuple[ClassGraph, Tiling]:
        """The program folded into classes, and its tiling."""
        return refold(self.context.analysis, self.assignment)

    @cached_property
    def cost_model(self) -> CostModel:
        """What estimates lowerings of the folded program."""
        context = self.context
        return CostModel(
            self.folded[0],
            context.analysis,
            context.mesh,
            context.hardware,
            self.capacity,
            context.timing,
        )


def follow(stage: Stage, directives: Iterable[Directive], change: Change = UNCHANGED) -> Stage:
    """The stage that directives lead to, in order."""
    for directive in directives:
        stage = stage.at(directive.follow(stage, change))
    return stage


def read_one_by_one(program: Program, op: Operation, factor: int) -> bool:
    """Whether an operation in a loop reads one index of a factor each time around."""
    inside = any(program.regions[r].repeats for r in program.around(op.region))
    return inside and op.traits.reads_window and op.rule.factors[factor].kind == "reduction"


class Tactic(Protocol):
    """A part of a partitioning strategy, written apart from the model.

    One that searches says so by an attribute `searches`, which is true. It may have a method
    `candidates(stage, searched)`, too, as `AutomaticPartition` has: outcomes that it could have had
    at a stage, best first, of what its search record says.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def apply(self, stage: Stage) -> Outcome:
        """Decides something, on top of what has been decided already.

        Raises:
          AxisError, UnknownNameError, TacticError: if it does not fit the mesh or the program.
        """
        ...


def searches(tactic: Tactic) -> bool:
    """Whether a tactic says of itself, by an attribute `searches`, that it searches.

    What the program says itself of how it is sharded goes first then, as for `AutomaticPartition`.
    """
    return bool(getattr(tactic, "searches", False))
