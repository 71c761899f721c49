"""`python -m tools.fits`: what does not fit by its layouts, planned, beside a schedule by hand.

Of each problem: the memory of the best plan without micro-batches, the plan that `partita.plan`
makes without tactics, and the quickest that fits of a schedule that an expert writes, whatever its
number of micro-batches. All are priced by the cost model; nothing is compiled.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console

import partita as pt
from partita import models
from partita.text import seconds, size


@dataclasses.dataclass(frozen=True)
class Problem:
    """A step that does not fit, and what an expert writes for it."""

    name: str
    preset: str
    batch: int
    mesh: str
    hardware: str
    by_hand: tuple[pt.Tactic, ...]
    memory: str | None = None


FSDP = pt.FullyShardedDataParallel("data")

PROBLEMS = (
    Problem("Llama 3 8B, 16 x 8,192 tokens", "llama3-8b", 16, "data=8", "a100_40gb", (FSDP,)),
    Problem("Llama 3 8B, 128 x 8,192 tokens", "llama3-8b", 128, "data=8", "a100_40gb", (FSDP,)),
    Problem(
        "Llama 3 70B, 512 x 8,192 tokens",
        "llama3-70b",
        512,
        "data=8,model=8",
        "h100",
        (FSDP, pt.SequenceParallel("model")),
    ),
)

BUDGET = 1000
"""Plans that a search may estimate."""


def planned(problem: Problem, tactics: Sequence[pt.Tactic]) -> pt.Plan:
    """A plan of a problem."""
    model = models.build(problem.preset, batch=problem.batch)
    return pt.plan(
        model.fn,
        *model.args,
        mesh=problem.mesh,
        hardware=problem.hardware,
        memory=problem.memory,
        tactics=tactics,
        donate_argnums=model.donate_argnums,
    )


def by_hand(problem: Problem) -> Iterator[tuple[int, pt.Plan]]:
    """The schedule of an expert, with each number of micro-batches that it fits with."""
    steps = 1
    while problem.batch % steps == 0:
        plan = planned(problem, [pt.Microbatch(steps), *problem.by_hand])
        if plan.estimate.fits:
            yield steps, plan
        steps *= 2


def row(problem: Problem, budget: int = BUDGET) -> tuple[str, ...]:
    """The cells of a problem in the table."""
    alone = planned(problem, [pt.AutomaticPartition(budget=budget, layouts_only=True)]).estimate
    start = time.process_time()
    plan = planned(problem, [pt.AutomaticPartition(budget=budget)])
    spent = time.process_time() - start
    hand = min(by_hand(problem), key=lambda each: each[1].estimate.step_time, default=None)
    shown = "none fits"
    if hand is not None:
        shown = f"{seconds(hand[1].estimate.step_time)} with {hand[0]}"
    return (
        problem.name,
        f"{pt.Mesh.of(problem.mesh).devices} {problem.hardware}",
        f"{size(alone.peak_memory)} of {size(alone.capacity)}",
        plan.history[0].name,
        f"{seconds(plan.estimate.step_time)}, {size(plan.estimate.peak_memory)}",
        shown,
        f"{spent:.0f} s",
    )


HEAD = ("step", "devices", "layouts alone", "micro-batches", "plan", "by hand", "planning, CPU")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    budget: Annotated[int, typer.Option(help="Plans that a search may estimate.")] = BUDGET,
) -> None:
    """Plan what does not fit by its layouts, and print a Markdown table."""
    console = Console(width=240)
    for cells in (HEAD, ("---",) * len(HEAD)):
        console.print("| " + " | ".join(cells) + " |")
    for problem in PROBLEMS:
        console.print("| " + " | ".join(row(problem, budget)) + " |")


if __name__ == "__main__":
    app()
