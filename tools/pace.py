"""`python -m tools.pace`: how soon the default search is close to the plan that it ends with.

For built-in models at published sizes. Seconds are those of the process, on one core, from when the
program is read (names, colors, classes, kernels) until a plan is found: what a search starts from
is worked out within them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from partita.garbage import paused
from partita.search import BUDGET, Problem, SearchState, algorithm
from partita.tactics.starts import starts
from tools.methods.cases import Case, Problems
from tools.ready_made import PUBLISHED, SIZES

SHARES = (0.05, 0.01, 0.001)
"""How much worse than the last plan one may be that counts as close."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A plan that was better than all before."""

    seconds: float
    plans: int
    """Evaluated until then."""
    fits: bool
    figure: float
    """What is the least: seconds of the step if it fits, else bytes at the peak."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """How the best plan of a search came down."""

    case: Case
    curve: tuple[Found, ...]
    seconds: float
    """Of all of the search."""
    plans: int

    def close(self, share: float) -> Found:
        """The first plan that is not worse than the last by more than a share."""
        last = self.curve[-1]
        return next(
            each
            for each in self.curve
            if each.fits == last.fits and each.figure <= last.figure * (1 + share)
        )


class _Clocked(Problem):
    """A problem that notes when a better plan is found."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.curve: list[Found] = []
        self.improve(self.best)

    def improve(self, state: SearchState) -> None:
        """Takes note of a state that is better than all before."""
        super().improve(state)
        peak = state.cost.peak
        fits = peak <= self.cost_model.capacity
        figure = self.time(state) if fits else peak
        self.curve.append(Found(time.process_time(), self.evaluations, fits, figure))


def pace(problems: Problems, case: Case, budget: int, seed: int) -> Pace:
    """Searches a new problem."""
    stage = problems.stage(case)
    context, axes = stage.context, range(len(stage.context.mesh.names))
    _ = stage.folded, context.timing
    with paused():
        began = time.process_time()
        problem = _Clocked(
            context.analysis,
            *stage.folded,
            context.mesh,
            stage.cost_model,
            axes,
            None,
            starts(stage, axes),
        )
        algorithm("iterated")(problem, budget, seed, lambda done, best: None)
        ended = time.process_time()
    curve = tuple(dataclasses.replace(each, seconds=each.seconds - began) for each in problem.curve)
    return Pace(case, curve, ended - began, problem.evaluations)


def markdown(paces: Sequence[Pace]) -> str:
    """A table, a search in each row."""
    close = [f"within {100 * share:g} %" for share in SHARES]
    head = ["model", "mesh", "device", "last plan", "search", "plans", *close]
    rows = [head, ["---"] * 3 + ["---:"] * (len(head) - 3)]
    for each in paces:
        last = each.curve[-1]
        figure = f"{1e3 * last.figure:.4g} ms" if last.fits else f"{last.figure / 2**30:.4g} GiB"
        found = map(each.close, SHARES)
        rows.append(
            [each.case.model, each.case.mesh, each.case.hardware, figure]
            + [f"{each.seconds:.1f} s", str(each.plans)]
            + [f"{one.seconds:.2f} s, {one.plans} plans" for one in found]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="Presets; one of each family.")
    ] = None,
    mesh: Annotated[str, typer.Option(help="Axes.")] = "data=4,model=8",
    hardware: Annotated[str, typer.Option(help="A device type.")] = "tpu_v5e",
    budget: Annotated[int, typer.Option(help="Plans that are estimated.")] = BUDGET,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
) -> None:
    """Say after how long the default search is close to its last plan."""
    problems = Problems(SIZES)
    cases = [Case(model, mesh, hardware) for model in models or PUBLISHED]
    print(markdown([pace(problems, case, budget, seed) for case in cases]))


if __name__ == "__main__":
    app()
