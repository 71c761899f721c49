"""`AutomaticPartition`: a search decides, on the axes it is given, after earlier tactics."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partita.cost import CostModel
from partita.cost.estimate import seconds, size
from partita.errors import TacticError
from partita.garbage import paused
from partita.search import Move, Problem, State, refine, tree_search
from partita.tactics.base import Action, Outcome, Refusal, Stage
from partita.tiling import assignment


@dataclasses.dataclass(frozen=True)
class AutomaticPartition:
    """Searches for the quickest plan that fits in memory.

    Args:
      axes: names of the mesh axes to use; all by default.
      budget: how many plans to price at most. Small programs need fewer and stop by themselves.
      seed: of the search; equal seeds give equal plans.
    """

    axes: Sequence[str] | None = None
    budget: int = 1500
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise TacticError(f"budget={self.budget}: a search must price at least one plan")

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"AutomaticPartition({', '.join(self.axes) if self.axes else 'all axes'})"

    def apply(self, stage: Stage) -> Outcome:
        """Searches, refines, and takes over the best plan seen."""
        context = stage.context
        mesh = context.mesh
        axes = [mesh.axis(name) for name in (mesh.names if self.axes is None else self.axes)]
        graph, tiling = stage.folded
        cost = CostModel(
            graph, context.analysis, mesh, context.hardware, context.capacity, context.timing
        )
        problem = Problem(context.analysis, graph, tiling, mesh, cost, axes)
        report = _Reporter(stage, self)
        with paused():
            best = tree_search(problem, self.budget * 2 // 3, self.seed, report)
            best = refine(problem, best, self.budget - self.budget * 2 // 3, report)
        report.finish(problem.evaluations, best)
        decisions = [_describe(stage, move) for move in best.moves] or ["nothing: no move helps"]
        refused: tuple[Refusal, ...] = ()
        if best.price.peak > context.capacity:
            refused = (
                Refusal(
                    "fitting into memory",
                    f"the smallest of {problem.evaluations} plans needs "
                    f"{size(best.price.peak)} per device, of {size(context.capacity)}",
                    "this is that plan; use more devices, a smaller batch, or rematerialisation",
                ),
            )
        actions = (
            Action(
                mesh.names[move.axis], context.colors.name(move.color), color=move.color, move=move
            )
            for move in best.moves
        )
        return Outcome(
            assignment(graph, best.tiling), tuple(decisions), refused, actions=tuple(actions)
        )


class _Reporter:
    """Passes the progress of a search on, not too often."""

    def __init__(self, stage: Stage, tactic: AutomaticPartition) -> None:
        self.send = stage.context.progress
        self.total = tactic.budget
        self.next = 0

    def __call__(self, done: int, best: State) -> None:
        if done >= self.next:
            self.next = done + 20
            self.send(min(done, self.total), self.total, _progress_text(best))

    def finish(self, done: int, best: State) -> None:
        self.send(self.total, self.total, f"{done} plans priced, {_progress_text(best)}")


def _progress_text(best: State) -> str:
    return f"best {seconds(best.price.step_time)}, {size(best.price.peak)}"


def _describe(stage: Stage, move: Move) -> str:
    colors, mesh = stage.context.colors, stage.context.mesh
    groups = stage.context.analysis.groups.conflict_groups
    text = f"{colors.name(move.color)} -> {mesh.names[move.axis]}"
    for conflict, role in move.roles:
        text += f", given to {colors.conflicts[conflict].roles[groups[conflict].index(role)]}"
    if not move.sums:
        text += " (but for sums over it)"
    if move.without:
        parts = ", ".join(map(str, move.without))
        text += f" (without part{'s' if len(move.without) > 1 else ''} {parts})"
    return text
