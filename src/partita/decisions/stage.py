"""A program in the middle of a schedule: what stays the same, and what has been decided so far.

Decisions lead from one `Stage` to the next. A stage holds all that they decide: the layout of every
operation and value, what is pinned, and how much memory the plan may use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any

from partita.analysis import Analysis, Between, ClassGraph, analyse, discrete
from partita.analysis.describe import Colors, describe
from partita.cost import CostModel, Hardware
from partita.cost.kernels.timing import Timing
from partita.exclusive import Exclusive
from partita.mesh import Mesh
from partita.program import Operation, Program
from partita.tiling import Assignment, Propagator, Tiling, refold, replicated

Progress = Callable[[int, int, str], None]
"""Called with (done, total, text) while a tactic works."""


def silent(done: int, total: int, text: str) -> None:
    """The `Progress` of whoever does not ask for one."""


_OF_PROGRAM = ("timing", "colors", "scanned")
"""What a context finds of its program alone, whatever the mesh."""


@dataclasses.dataclass(frozen=True)
class Context:
    """Constant part of a schedule: the program, its analysis and the target."""

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
    origin: Context | None = dataclasses.field(default=None, compare=False, repr=False)
    """Context of the program that a decision has made this one of."""

    def __getstate__(self) -> dict[str, Any]:
        """All but what is found again, and the callback, which is of this process."""
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**known, "progress": silent}

    @property
    def traced(self) -> Program:
        """The program as it was traced, before decisions changed it."""
        return self.analysis.program if self.origin is None else self.origin.traced

    def changing(self, decision: Hashable, change: Callable[[], Program]) -> Context:
        """The context of the program that a decision makes of this one; made once.

        Args:
          decision: the decision.
          change: makes the program.
        """
        key = decision, self.mesh.devices
        known = self._changed.get(key)
        if known is None:
            changed = analyse(change(), int(self.hardware.regather_window.value))
            known = dataclasses.replace(self, analysis=changed, origin=self)
            self._changed[key] = known
        if known.origin is self:
            return known
        return known._alike(mesh=self.mesh, progress=self.progress, origin=self)

    @cached_property
    def _changed(self) -> dict[Hashable, Context]:
        """Contexts of the programs that decisions have made, by decision and number of devices."""
        return {}

    def over(self, mesh: Mesh) -> Context:
        """The same over another mesh; what no mesh has a say in is not worked out again."""
        _ = self.timing, self.colors  # once for all meshes
        return self._alike(mesh=mesh, origin=self.origin and self.origin.over(mesh))

    def telling(self, progress: Progress) -> Context:
        """The same with another progress callback."""
        return self._alike(progress=progress)

    def _alike(self, **changes: Any) -> Context:
        """The same with other fields, on which what has been found of the program does not
        depend."""
        other, found = dataclasses.replace(self, **changes), self.__dict__
        other.__dict__.update({each: found[each] for each in _OF_PROGRAM if each in found})
        other.__dict__["_changed"] = self._changed
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

    def after(self, outcome: Any) -> Stage:
        """The stage that the `Outcome` of a tactic leads to."""
        memory = self.memory if outcome.memory is None else outcome.memory
        return Stage(outcome.context or self.context, outcome.assignment, memory)

    def of(self, context: Context) -> Stage:
        """The stage at which nothing is sharded of the program of another context."""
        return Stage(context, replicated(context.analysis.program), self.memory)

    @property
    def is_first(self) -> bool:
        """True if nothing has been decided of the program's layouts."""
        return self.assignment == replicated(self.context.analysis.program)

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

    def unpinned(self, pins: Iterable[tuple[int, int]]) -> Stage:
        """The stage in which some `(value, axis)` pairs are no longer pinned."""
        assigned = self.assignment
        pinned = assigned.pinned.difference(pins)
        return (
            self
            if pinned == assigned.pinned
            else self.at(dataclasses.replace(assigned, pinned=pinned))
        )

    def gathering(self, values: Iterable[int], between: Between) -> Stage:
        """The stage in which it is decided between which uses some values are gathered again."""
        chosen = set(values)
        others = {pair for pair in self.assignment.gathers if pair[0] not in chosen}
        gathers = frozenset(others | {(value, int(between)) for value in chosen})
        return self.at(dataclasses.replace(self.assignment, gathers=gathers))

    def within(self, memory: int) -> Stage:
        """The stage in which the plan may use so many bytes per device; it is folded alike."""
        other = dataclasses.replace(self, memory=memory)
        other.__dict__.update(folded=self.folded)
        return other

    @property
    def tiling(self) -> Tiling:
        """Tiling of single operations and values."""
        return self.assignment.tiling

    @cached_property
    def folded(self) -> tuple[ClassGraph, Tiling]:
        """The program folded into classes, and its tiling."""
        return refold(self.context.analysis, self.assignment)

    def propagator(self, graph: ClassGraph) -> Propagator:
        """A propagator over classes of the program."""
        return Propagator(graph, self.context.mesh, self.context.analysis.groups.conflict_groups)

    @cached_property
    def cost_model(self) -> CostModel:
        """Cost model of the folded program."""
        context = self.context
        return CostModel(
            self.folded[0],
            context.analysis,
            context.mesh,
            context.hardware,
            self.capacity,
            context.timing,
        )


def read_one_by_one(program: Program, op: Operation, factor: int) -> bool:
    """Returns whether an operation in a loop reads one index of a factor in each iteration."""
    inside = any(program.regions[r].repeats for r in program.around(op.region))
    return inside and op.traits.reads_window and op.rule.factors[factor].kind == "reduction"
