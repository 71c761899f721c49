"""A schedule: tactics applied in order, each reported with what it changed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from partita.analysis.describe import Colors
from partita.cost import Estimate, Hardware, Interconnect, Together, interconnect
from partita.cost.compute.idle_axes import IdleAxis, idle_axes
from partita.cost.memory.footprint import Footprint, footprint
from partita.cost.timeline.instruction_costs import InstructionCosts
from partita.cost.timeline.intervals import ITERATIONS, MOST_INTERVALS, Timeline, timeline
from partita.decisions import Context, Decision, GatherAgain, Stage, apply, gathers
from partita.errors import FormerName
from partita.escape import printed
from partita.garbage import paused
from partita.mesh import Mesh
from partita.planning.effect import DIVIDED, effect, ends
from partita.planning.fused import fused_projections
from partita.program import Program
from partita.program.names import pattern, shared_pattern
from partita.spmd import (
    Lowerer,
    Lowering,
    ReplicatedUse,
    SpmdProgram,
    Step,
    added,
    replicated_uses,
    unfold,
)
from partita.tactics import Outcome, Refusal, Suggestion, Tactic
from partita.text import seconds, size
from partita.tiling import Layout, entries, replicated
from partita.validation import validate

MOST_ESTIMATED = 3000
"""Operations of the largest program whose suggestions are estimated unasked."""


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class TacticReport(Outcome):
    """One entry of a plan's history: the outcome of a tactic, with what it changed.

    Its `warnings` include `effects`.
    """

    tactic: Tactic = dataclasses.field(compare=False)
    """The tactic itself."""
    name: str
    """The tactic, as it names itself."""
    tiled: Mapping[str, tuple[Any, ...]]
    """Patterns of arguments and tagged values whose sharding the tactic changed, with the entries
    of the `PartitionSpec` after it."""
    effects: tuple[str, ...] = dataclasses.field(compare=False)
    """The warnings that come from what it costs, not from the tactic."""
    replicated_uses: tuple[ReplicatedUse, ...]
    """Operations that require replication of dimensions that the tactic sharded, and what is
    gathered for them."""
    collectives: Mapping[str, int]
    """Number of collectives of each kind after the tactic."""
    before: Estimate
    """Cost before the tactic."""
    estimate: Estimate
    """Cost after the tactic."""

    @printed
    def __repr__(self) -> str:
        """Returns one line: a history is looked at by printing it."""
        return (
            f"TacticReport({self.name!r}: tiled {len(self.tiled)}, refused {len(self.refused)}, "
            f"step {seconds(self.before.step_time)} -> {seconds(self.estimate.step_time)}, "
            f"peak {size(self.before.peak_memory)} -> {size(self.estimate.peak_memory)})"
        )

    whole = FormerName("replicated_uses")


@dataclasses.dataclass(frozen=True, repr=False)
class Scheduled:
    """State of a schedule, lowered and estimated. As text, one line."""

    stage: Stage
    lowering: Lowering
    estimate: Estimate
    history: tuple[TacticReport, ...] = ()

    def before(self, position: int) -> Stage:
        """The stage before the tactic at a position of the history; after all, at its end."""
        if position == len(self.history):
            return self.stage
        context, memory = self.stage.context, self.history[position].before.capacity
        for entry in self.history[position:]:
            if entry.context is not None and context.origin is not None:
                context = context.origin
        start = Stage(context, replicated(context.analysis.program), memory)
        if position == 0 or self.history[position - 1].context is not None:
            return start
        return start.at(self.history[position - 1].assignment)

    @property
    def mesh(self) -> Mesh:
        """The mesh that it is for."""
        return self.stage.context.mesh

    @property
    def hardware(self) -> Hardware:
        """The device type that it is for."""
        return self.stage.context.hardware

    @property
    def program(self) -> Program:
        """The program that is partitioned."""
        return self.stage.context.analysis.program

    @property
    def colors(self) -> Colors:
        """The analysis: colors and conflicts."""
        return self.stage.context.colors

    @property
    def gathered_again(self) -> tuple[GatherAgain, ...]:
        """What it gathers again: as has been decided, and as was chosen for lack of memory."""
        values, chosen = self.lowering.graph.values, self.lowering.regathered
        return gathers(
            (member, between) for v, between in chosen.items() for member in values[v].members
        )

    def gathering_again(self, decided: Sequence[Decision]) -> Scheduled:
        """Returns the same if just this, which `gathered_again` has been, is gathered again."""
        if tuple(decided) == self.gathered_again:
            return self
        stage = apply(self.stage, decided)
        lowering, estimate = lower_and_cost(stage, choose=False)
        return dataclasses.replace(self, stage=stage, lowering=lowering, estimate=estimate)

    @cached_property
    def combined(self) -> Mapping[tuple[str, tuple[str, ...]], Together]:
        """Collectives after a compiler has combined them, by kind and axes as in
        `estimate.traffic`."""
        return self.stage.cost_model.combined(self.lowering, self.estimate)

    @property
    def most_memory(self) -> int:
        """Bytes at the fullest moment, if what may be kept alive for longer is."""
        estimate, held = self.estimate, self.hardware.kernels.held_longer
        share = 0.0 if held is None else held.value
        temporary = estimate.peak_memory - estimate.argument_memory - estimate.constant_memory
        return estimate.peak_memory + round(share * temporary)

    @cached_property
    def idle_axes(self) -> tuple[IdleAxis, ...]:
        """The axes of the mesh along which all devices do the same work."""
        return idle_axes(self.lowering, self.stage.cost_model.compute)

    @cached_property
    def spmd(self) -> SpmdProgram:
        """The device-local program, operation for operation, proven to compute what the original
        does."""
        context = self.stage.context
        network = interconnect(context.mesh, context.hardware)
        spmd = unfold(self.lowering)
        validate(spmd)
        return dataclasses.replace(spmd, time=partial(_shown_time, network))

    @cached_property
    def replicated_uses(self) -> tuple[ReplicatedUse, ...]:
        """Operations that require replication of sharded dimensions."""
        return replicated_uses(self.lowering)

    @cached_property
    def fused(self) -> tuple[str, ...]:
        """Costs of sharding fused projections, and how to save them."""
        return fused_projections(self.lowering, interconnect(self.mesh, self.hardware))

    @cached_property
    def footprint(self) -> Footprint:
        """Memory over the step."""
        stage = self.stage
        timing = stage.context.timing
        return footprint(self.lowering, stage.cost_model.memory, timing, stage.capacity)

    @cached_property
    def timeline(self) -> Timeline:
        """One step in time, as it is priced."""
        return self.timeline_of()

    def timeline_of(self, iterations: int = ITERATIONS, most: int = MOST_INTERVALS) -> Timeline:
        """The same with so many iterations of loops one by one, and about so many intervals."""
        costs = InstructionCosts(self.spmd, self.stage.cost_model, self.estimate)
        return timeline(self.spmd, costs, self.estimate, iterations, most)

    @printed
    def __str__(self) -> str:
        return f"{self.program.name} on {self.mesh} ({self.hardware.name}): {self.estimate}"

    def then(self, tactic: Tactic) -> Scheduled:
        """Applies one tactic more. Earlier decisions win."""
        with paused():
            return self.decided(tactic, tactic.apply(self.stage))

    def decided(self, tactic: Tactic, outcome: Outcome) -> Scheduled:
        """The same, with what the tactic has decided at this stage already."""
        with paused():
            after = self.stage.after(outcome)
            done = Scheduled(after, *lower_and_cost(after))
            refused = (*outcome.refused, *outcome.more_refused())
            outcome = dataclasses.replace(outcome, refused=refused)
            if len(self.lowering.graph.program.operations) <= MOST_ESTIMATED:
                refused = with_estimates(self.stage, outcome.refused)
                outcome = dataclasses.replace(outcome, refused=refused)
            report = _report(tactic, outcome, self, done)
        return dataclasses.replace(done, history=(*self.history, report))

    def suggestions(self, number: int) -> tuple[Suggestion, ...]:
        """Returns the suggestions for a tactic, by its place in the history; all estimated."""
        number %= len(self.history)
        stage, refused = self.before(number), self.history[number].refused
        every = dict.fromkeys(each for refusal in refused for each in refusal.suggestions)
        return tuple(each if each.estimate else estimated(stage, each) for each in every)


def run_schedule(context: Context, tactics: Sequence[Tactic]) -> Scheduled:
    """Applies tactics in order, to a program of which nothing is sharded."""
    done = unscheduled(context)
    for tactic in tactics:
        done = done.then(tactic)
    return done


def unscheduled(context: Context) -> Scheduled:
    """Returns the begin of every schedule: nothing is sharded."""
    stage = Stage(context, replicated(context.analysis.program))
    return Scheduled(stage, *lower_and_cost(stage))


def with_estimates(stage: Stage, refused: Sequence[Refusal]) -> tuple[Refusal, ...]:
    """Refusals with what their suggestions would cost.

    Args:
      stage: what had been decided before the tactic that was refused.
      refused: its refusals.
    """
    known: dict[str, Suggestion] = {}  # refusals of one cause have the same

    def costed(suggestion: Suggestion) -> Suggestion:
        if suggestion.text not in known:
            known[suggestion.text] = estimated(stage, suggestion)
        return known[suggestion.text]

    return tuple(
        dataclasses.replace(refusal, suggestions=tuple(map(costed, refusal.suggestions)))
        for refusal in refused
    )


def estimated(stage: Stage, suggestion: Suggestion) -> Suggestion:
    """Applies a suggestion to a stage, on the mesh that it is for, and estimates where it leads."""
    if suggestion.mesh is not None:
        stage = dataclasses.replace(stage, context=stage.context.over(suggestion.mesh))
    _, estimate = lower_and_cost(stage.after(suggestion.tactic.apply(stage)))
    return dataclasses.replace(suggestion, estimate=estimate)


def lower_and_cost(stage: Stage, choose: bool = True) -> tuple[Lowering, Estimate]:
    """The lowering of a stage, with what is gathered again, and what it costs.

    Args:
      stage: what to lower.
      choose: whether what takes too much memory is gathered again where nothing is decided of it.
    """
    graph, tiling = stage.folded
    latency = int(stage.context.hardware.latency_bytes.value)
    lowering = Lowerer(graph, stage.context.mesh, latency).lower(tiling)
    by_xla = stage.context.analysis.program.by_xla  # which gathers nothing again
    return stage.cost_model.settle(lowering, choose and not by_xla)


def _shown_time(network: Interconnect, step: Step) -> str:
    return seconds(network.seconds(step))


def argument_groups(program: Program, layouts: Sequence[Layout]) -> dict[str, list[int]]:
    """Arguments by pattern, repeated structure written once, those laid out alike together.

    Args:
      program: whose arguments to group.
      layouts: the layout of every argument.

    Returns:
      Argument numbers by a pattern of their names, `*` standing for what differs.
    """
    groups: dict[tuple[str, object, Layout], list[int]] = {}
    names = program.argument_names
    for number, (name, value) in enumerate(zip(names, program.arguments, strict=True)):
        key = (pattern(name), program.values[value].type, layouts[number])
        groups.setdefault(key, []).append(number)
    alike = Counter(shown for shown, _, _ in groups)
    return {
        shared_pattern([names[n] for n in numbers], alike[shown] == 1): numbers
        for (shown, _, _), numbers in groups.items()
    }


def _report(tactic: Tactic, outcome: Outcome, before: Scheduled, after: Scheduled) -> TacticReport:
    fused = (told for told in after.fused if told not in before.fused)
    effects = (*_effect(before, after), *fused)
    said = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(Outcome)}
    said |= {"warnings": (*outcome.warnings, *effects), "more_refused": tuple}
    changed = outcome.context is not None  # nothing is sharded of the new program
    return TacticReport(
        **said,
        tactic=tactic,
        name=tactic.name,
        tiled={} if changed else _tiled(before.stage, after),
        effects=effects,
        replicated_uses=added(after.replicated_uses, before.replicated_uses),
        collectives=after.lowering.counts(),
        before=before.estimate,
        estimate=after.estimate,
    )


def _effect(before: Scheduled, after: Scheduled) -> tuple[str, ...]:
    """Why what a tactic has sharded may not be worth it, and where the axis ends."""
    old, new = before.stage.assignment, after.stage.assignment
    if after.stage.context is not before.stage.context:
        return ()
    told = effect(before.estimate, after.estimate)
    if not told or (old.ops, old.values) == (new.ops, new.values):
        return ()
    divided = after.estimate.compute_time < DIVIDED * before.estimate.compute_time
    where = "" if divided else ends(after.program, old, new, after.mesh)
    return (f"{told}; {where}" if where else told,)


def _tiled(before: Stage, after: Scheduled) -> dict[str, tuple[Any, ...]]:
    """Returns the shardings that a tactic has changed, of arguments and tagged values."""
    program, mesh = after.lowering.graph.program, after.lowering.mesh
    old, new = before.assignment.values, after.stage.assignment.values
    layouts = [new[v] for v in program.arguments]
    found = {
        label: entries(layouts[numbers[0]], mesh)
        for label, numbers in argument_groups(program, layouts).items()
        if old[program.arguments[numbers[0]]] != layouts[numbers[0]]
    }
    for tag, value in program.tagged:
        if old[value] != new[value]:
            found.setdefault(tag, entries(new[value], mesh))
    return found
