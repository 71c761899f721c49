"""A schedule: tactics applied in order, each reported with what it changed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from partita.analysis.describe import pattern, shared_pattern
from partita.cost import CostModel, Estimate
from partita.program import Program
from partita.spmd import Lowerer, SpmdProgram, WholeUse, added, entries, unfold, whole_uses
from partita.tactics import Context, Outcome, Refusal, Stage, Tactic
from partita.tiling import Assignment, Layout


@dataclasses.dataclass(frozen=True)
class TacticReport:
    """One entry of a plan's history."""

    name: str
    """The tactic, as it names itself."""
    decisions: tuple[str, ...]
    """What the tactic chose, in its own words."""
    tiled: Mapping[str, tuple[Any, ...]]
    """Argument patterns whose sharding the tactic changed, with the entries of the
    `PartitionSpec` after it."""
    refused: tuple[Refusal, ...]
    """Wishes that were not met, with the reasons."""
    conflicts: tuple[str, ...]
    """Conflicts that were met and not resolved, with the choices."""
    warnings: tuple[str, ...]
    """What was done as asked, but costs more than it looks."""
    whole: tuple[WholeUse, ...]
    """Operations that need dimensions whole which the tactic sharded, and what is gathered."""
    collectives: Mapping[str, int]
    """Number of collectives of each kind after the tactic."""
    estimate: Estimate
    """Cost after the tactic."""


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """Where a schedule ends."""

    assignment: Assignment
    spmd: SpmdProgram
    estimate: Estimate
    history: tuple[TacticReport, ...]


def run_schedule(context: Context, tactics: Sequence[Tactic]) -> Scheduled:
    """Applies tactics in order. Earlier decisions win."""
    program = context.analysis.program
    layouts = tuple(((),) * len(op.rule.factors) for op in program.operations)
    values = tuple(((),) * len(v.type.shape) for v in program.values)
    stage = Stage(context, Assignment(layouts, values))
    history = []
    if not tactics:
        return Scheduled(stage.assignment, *lower_and_price(stage), ())
    known: tuple[WholeUse, ...] = ()
    for tactic in tactics:
        outcome = tactic.apply(stage)
        after = Stage(context, outcome.assignment)
        spmd, estimate = lower_and_price(after)
        whole = whole_uses(spmd)
        new = added(whole, known)
        history.append(_report(program, tactic, stage, outcome, spmd, estimate, new))
        stage, known = after, whole
    return Scheduled(stage.assignment, spmd, estimate, tuple(history))


def lower_and_price(stage: Stage) -> tuple[SpmdProgram, Estimate]:
    """The SPMD program of a stage, and what it costs."""
    context = stage.context
    graph, tiling = stage.folded
    cost = CostModel(
        graph, context.analysis, context.mesh, context.hardware, context.capacity, context.fusion
    )
    lowering = Lowerer(graph, context.mesh).lower(tiling)
    price = cost.price(lowering)
    spmd = unfold(lowering, price.regather)
    return spmd, cost.estimate(price, spmd)


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


def _report(
    program: Program,
    tactic: Tactic,
    before: Stage,
    outcome: Outcome,
    spmd: SpmdProgram,
    estimate: Estimate,
    whole: tuple[WholeUse, ...],
) -> TacticReport:
    old = [before.assignment.values[v] for v in program.arguments]
    new = [outcome.assignment.values[v] for v in program.arguments]
    tiled = {
        label: entries(new[numbers[0]], spmd.mesh)
        for label, numbers in argument_groups(program, new).items()
        if old[numbers[0]] != new[numbers[0]]
    }
    counts = Counter[str](c.kind for c in spmd.collectives)
    return TacticReport(
        tactic.name,
        outcome.decisions,
        tiled,
        outcome.refused,
        outcome.conflicts,
        outcome.warnings,
        whole,
        dict(counts),
        estimate,
    )
