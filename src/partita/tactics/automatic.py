"""`AutomaticPartition`: a search decides, on the axes it is given, after earlier tactics.

What it finds is a sequence of tile actions, which can be followed again without a search.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import ClassVar

from partita.decisions import DecisionGroup, ShardClass, Stage
from partita.errors import PartitaWarning, TacticError, closest, renamed, warn
from partita.garbage import paused
from partita.options import integer, texts
from partita.program.collectives import COLLECTIVES
from partita.program.names import match
from partita.search import BUDGET, EnoughError, Move, Problem, SearchState, algorithm, team
from partita.search.bounds import Bound
from partita.search.record import SearchRecord, record
from partita.search.simplified import simplified
from partita.tactics.choices import choices
from partita.tactics.options import check
from partita.tactics.padding import paddings
from partita.tactics.parts import Patterns, as_patterns
from partita.tactics.placement import as_dims, sharing_a_buffer
from partita.tactics.protocol import Outcome, Refusal
from partita.tactics.starts import starts
from partita.text import parse_size, seconds, size
from partita.tiling import assignment, uses_axis

MOST_CLASSES = 8
"""Changes of single classes that the report of a search lists."""

MOST_SIZES = 3
"""Sizes that an axis does not divide which the report of a search names."""


@dataclasses.dataclass(frozen=True)
class AutomaticPartition:
    """Searches for the quickest plan that fits in memory.

    Args:
      axes: names of the mesh axes to use, or the name of one; all by default.
      budget: how many plans to estimate at most. Small programs need fewer and stop by themselves.
      seed: of the search; equal seeds give equal plans.
      memory: bytes per device that the plan may use from here on, or a string such as `"12GiB"`;
        by default what it may use already, and no more than that.
      allow: patterns of arguments, results and tagged values, or a dict with their dimensions (all
        by default). Only colors that these dimensions have are tiled: whatever the search shards,
        it shards in a dimension whose color group is that of one of them.
      pinned: patterns of what keeps the layout that it has, as does what shares its buffer. Later
        tactics may shard it.
      workers: how many searches to run at once, each with the whole budget: one in this process,
        the others in processes of their own. Equal seeds and as many workers give equal plans.
      search: name of the algorithm: `iterated`, an iterated local search from the empty plan and
        from good starts; `mcts`, a Monte Carlo tree search and then refinement; or `refine`,
        refinement of the empty plan alone.
      freeze: former name of `pinned`.
      layouts_only: whether to decide layouts and nothing else. By default a plan that does not fit
        is run in micro-batches, as by `Microbatch`, if that makes it fit.
      avoid: kinds of collectives that the plan must not have, such as `"collective_permute"`, where
        what runs it cannot do them.

    Example:
      >>> AutomaticPartition(axes=["model"], memory="12GiB", pinned=["batch*"]).name
      'AutomaticPartition(model, memory=12GiB, pinned=batch*)'
    """

    axes: str | Sequence[str] | None = None
    budget: int = BUDGET
    seed: int = 0
    memory: float | str | None = None
    allow: Patterns | None = None
    pinned: str | Sequence[str] = ()
    search: str = "iterated"
    workers: int = 1
    freeze: dataclasses.InitVar[str | Sequence[str] | None] = None
    avoid: str | Sequence[str] = ()
    layouts_only: bool = False

    searches: ClassVar[bool] = True
    """See `Tactic`."""

    def __post_init__(self, freeze: str | Sequence[str] | None) -> None:
        if freeze is not None:
            renamed("AutomaticPartition(freeze=)", "AutomaticPartition(pinned=)", stacklevel=3)
            object.__setattr__(self, "pinned", freeze)
        if self.axes is not None:
            axes = texts(self.axes, "AutomaticPartition: axes", "names of mesh axes", TacticError)
            object.__setattr__(self, "axes", axes)
        integer(self.budget, "AutomaticPartition: budget", 1, TacticError)
        integer(self.seed, "AutomaticPartition: seed", kind=TacticError)
        integer(self.workers, "AutomaticPartition: workers", 1, TacticError)
        check(self)
        object.__setattr__(self, "avoid", _kinds(self.avoid))
        algorithm(self.search)  # complains before any work

    @property
    def name(self) -> str:
        """Name in reports."""
        said = [", ".join(self.axes) if self.axes else "all axes"]
        if self.memory is not None:
            said.append(f"memory={self.memory}")
        if self.search != "iterated":
            said.append(f"search={self.search}")
        named = (("allow", self.allow), ("pinned", self.pinned), ("avoid", self.avoid))
        for word, patterns in named:
            if patterns:
                said.append(f"{word}={' '.join(as_patterns(patterns))}")
        return f"AutomaticPartition({', '.join(said)})"

    def apply(self, stage: Stage) -> Outcome:
        """Searches, refines, and takes over the best plan seen."""
        problem = self._problem(stage)
        report, search = _Reporter(stage, self), algorithm(self.search)
        lost: list[str] = []
        interrupted = ""
        with paused():
            try:
                best = team.search(
                    search, problem, self.budget, self.seed, report, self.workers, lost.append
                )
                best = simplified(problem, best)
                report.finish(problem.evaluations, best)
            except EnoughError:
                best, number = problem.best, problem.evaluations
                interrupted = f"interrupted: this is the best of {number} plans evaluated so far"
        for worker in lost:
            warn(worker, PartitaWarning)
        warnings = (*lost, *filter(None, [interrupted]))
        said, searched = _decisions(stage, problem, best), _record(stage, problem, best)
        outcome = self._outcome(stage, problem, best, said, searched, warnings)
        if self.allow is not None or warnings:
            return outcome
        return dataclasses.replace(
            outcome, more_refused=lambda: tuple(paddings(stage, problem.axes, best))
        )

    def candidates(self, stage: Stage, searched: SearchRecord) -> Iterator[Outcome]:
        """Yields what else it could have decided, best first, of the plans seen and its starts.

        Nothing is searched.

        Args:
          stage: at which it has been applied.
          searched: what it did there.
        """
        problem = self._problem(stage)
        for choice in choices(problem, searched.candidates):
            said = [choice.told, *_moves(stage, choice.state)]
            yield self._outcome(stage, problem, choice.state, said, searched)

    def _outcome(
        self,
        stage: Stage,
        problem: Problem,
        best: SearchState,
        decisions: Sequence[str],
        searched: SearchRecord,
        warnings: tuple[str, ...] = (),
    ) -> Outcome:
        """Returns the outcome if it decides on this state of its problem."""
        graph, capacity = problem.graph, problem.cost_model.capacity
        refused = tuple(
            self._indivisible(stage, {axis for move in best.moves for axis in move.axes})
        )
        if best.cost.peak > capacity:
            number = searched.evaluations
            which, this = f"the smallest of {number} plans", "this is that plan; "
            if best.moves != searched.candidates[0]:
                which, this = "this plan", ""
            too_large = Refusal(
                "fitting into memory",
                f"{which} needs {size(best.cost.peak)} per device, of {size(capacity)}",
                f"{this}use more devices, micro-batches, a smaller batch, or rematerialisation",
            )
            refused = (too_large, *refused)
        if problem.avoided(best.lowering):
            kinds = " or ".join(self.avoid)
            refused = (Refusal(f"no {kinds}", "what was decided before needs one"), *refused)
        actions = [action for move in best.moves for action in move.actions(stage)]
        found = assignment(graph, best.tiling)
        return Outcome(
            dataclasses.replace(found, pinned=stage.assignment.pinned),
            tuple(decisions),
            refused,
            warnings=warnings,
            actions=tuple(actions),
            memory=None if self.memory is None else capacity,
            decided=(self._decided(stage, best.moves),),
            search=searched,
        )

    def _decided(self, stage: Stage, moves: Sequence[Move]) -> DecisionGroup:
        single = itertools.chain.from_iterable(
            move.decisions if isinstance(move, DecisionGroup) else (move,) for move in moves
        )
        return DecisionGroup(tuple(single), tuple(sorted(self._pins(stage, self._axes(stage)))))

    def _indivisible(self, stage: Stage, used: Container[int]) -> Iterator[Refusal]:
        """The axes that are not used, each with the sizes that it cannot divide."""
        mesh, allowed = stage.context.mesh, self._colors(stage)
        colors = [
            info
            for info in stage.context.colors.colors
            if info.size > 1 and info.examples and (allowed is None or info.group in allowed)
        ]
        for axis in self._axes(stage):
            devices = mesh.sizes[axis]
            found = [info for info in colors if info.size % devices]
            if len(found) < len(colors):  # then small ones are not why the axis is idle
                found = [info for info in found if info.size > devices]
            if axis in used or not found:
                continue
            found.sort(key=lambda info: -info.dims)
            shown = ", ".join(f"{info.size} ({info.examples[0]})" for info in found[:MOST_SIZES])
            more = f" and {rest} more" if (rest := len(found[MOST_SIZES:])) else ""
            none = "" if len(found) < len(colors) else "any size: "
            yield Refusal(
                f"{mesh.names[axis]}={devices}",
                f"it does not divide {none}{shown}{more}",
                "a size padded to a multiple, or an axis of another size, could be used",
            )

    def _axes(self, stage: Stage) -> list[int]:
        """Positions of the mesh axes to use. Along one device there is nothing to split."""
        mesh = stage.context.mesh
        axes = [mesh.axis(name) for name in (mesh.names if self.axes is None else self.axes)]
        return [axis for axis in axes if mesh.sizes[axis] > 1]

    def _problem(self, stage: Stage) -> Problem:
        """Returns the search problem: the stage, with values that keep their layout pinned."""
        axes = self._axes(stage)
        start = stage.pinned(self._pins(stage, axes)).within(self._capacity(stage))
        context, colors = stage.context, self._colors(stage)
        return Problem(
            context.analysis,
            *start.folded,
            context.mesh,
            start.cost_model,
            axes,
            colors,
            starts(start, axes) if colors is None else (),
            self.avoid,
        )

    def _capacity(self, stage: Stage) -> int:
        """Bytes per device that the plan may use."""
        if self.memory is None:
            return stage.capacity
        capacity = parse_size(self.memory, "memory")
        if capacity > stage.capacity:
            raise TacticError(
                f"{self.name}: the plan may use {size(stage.capacity)} per device, and a tactic "
                "only less; give pt.plan the larger memory="
            )
        return capacity

    def _pins(self, stage: Stage, axes: Sequence[int]) -> set[tuple[int, int]]:
        """Returns the values that keep their layout, each with the axes that might change it."""
        program, layouts = stage.context.analysis.program, stage.assignment.values
        values = {
            shared
            for pattern in as_patterns(self.pinned)
            for _, value in match(program, pattern)
            for shared in sharing_a_buffer(program, value)
        }
        return {(v, axis) for v in values for axis in axes if not uses_axis(layouts[v], axis)}

    def _colors(self, stage: Stage) -> frozenset[int] | None:
        """The color groups that may be tiled; None for all."""
        if self.allow is None:
            return None
        program, graph = stage.context.analysis.program, stage.context.single.graph
        found: set[int] = set()
        for pattern in as_patterns(self.allow):
            for name, value in match(program, pattern):
                colors = graph.values[value].colors
                dims: Sequence[int] = range(len(colors))
                if isinstance(self.allow, Mapping):
                    dims = as_dims(self.allow[pattern], name, program, value)
                found.update(colors[dim] for dim in dims)
        return frozenset(found - {-1})


def _kinds(given: str | Sequence[str]) -> tuple[str, ...]:
    """Kinds of collectives, by name.

    Raises:
      TacticError: there is none of a name.
    """
    found = texts(given, "AutomaticPartition: avoid", "kinds of collectives", TacticError)
    for kind in found:
        if kind not in COLLECTIVES:
            raise TacticError(
                f"AutomaticPartition: avoid={kind!r} is no kind of collective"
                f"{closest(kind, COLLECTIVES)}; they are {', '.join(COLLECTIVES)}"
            )
    return tuple(found)


class _Reporter:
    """Passes the progress of a search on, not too often."""

    def __init__(self, stage: Stage, tactic: AutomaticPartition) -> None:
        self.send = stage.context.progress
        self.total = tactic.budget
        self.next, self.due = 0, 0.0

    def __call__(self, done: int, best: SearchState) -> None:
        now = time.monotonic()
        if done >= self.next or now >= self.due:
            self.next, self.due = done + 20, now + 0.2
            self.send(min(done, self.total), self.total, _progress_text(best))

    def finish(self, done: int, best: SearchState) -> None:
        self.send(self.total, self.total, f"{done} plans evaluated, {_progress_text(best)}")


def _progress_text(best: SearchState) -> str:
    return f"best {seconds(best.cost.time.step_time)}, {size(best.cost.peak)}"


def _decisions(stage: Stage, problem: Problem, best: SearchState) -> list[str]:
    """Returns the choices in words; at the end single classes, and the gap to the lower bound."""
    if not best.moves:
        complete = f", of {problem.complete} plans in all" if problem.complete else ""
        return [f"nothing: no move helps{complete}"]
    said = [*_moves(stage, best)]
    if problem.complete:
        said.append(f"the best of all {problem.complete} plans that whole decisions lead to")
    if problem.least and best.cost.peak <= problem.cost_model.capacity:
        told = Bound(problem.least, ()).told(best.cost.time.step_time)
        said.append(f"this among {problem.evaluations} plans: {told}")
    return said


def _record(stage: Stage, problem: Problem, best: SearchState) -> SearchRecord:
    return record(problem, best, lambda state: _moves(stage, state))


def _moves(stage: Stage, state: SearchState) -> tuple[str, ...]:
    """The moves of a state, in words; of changes of single classes the first ones, at the end."""
    local = [move for move in state.moves if isinstance(move, ShardClass)]
    said = [move.describe(stage) for move in state.moves if not isinstance(move, ShardClass)]
    said += [move.describe(stage) for move in local[:MOST_CLASSES]]
    if more := local[MOST_CLASSES:]:
        said.append(f"{len(more)} more changes of single operations and values")
    return tuple(said)
