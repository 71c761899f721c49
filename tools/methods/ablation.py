"""`python -m tools.methods.ablation`: what each part of the default search is worth.

Parts are left out one by one: phases, kinds of changes, and helpers. The table has, of each part
and case, how much slower the plan is that a search of the same budget finds, and seconds of CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from unittest import mock

import typer
from rich.console import Console
from rich.table import Table

from partita.garbage import paused
from partita.search import Problem, iterated_search
from tools.methods.cases import Case, Problems
from tools.methods.runs import step_time

CASES = (
    Case("mlp", "4x2", "tpu_v5e", "tight"),
    Case("gpt-1l", "4x2", "tpu_v5e"),
    Case("decode", "4x2", "tpu_v5e", "tight"),
    Case("gns", "4x2", "tpu_v5e"),
    Case("unet", "4x2", "tpu_v5e"),
    Case("mlp", "2x2x2", "tpu_v5e"),
)

iterated, refine = (
    importlib.import_module(f"partita.search.{name}") for name in ("iterated", "refine")
)

Change = tuple[object, str, Any]
"""An object, the name of an attribute, and what it is instead."""


def parts() -> Mapping[str, tuple[Change, ...]]:
    """The parts of the search, by name, with the changes that leave each out."""
    found: dict[str, tuple[Change, ...]] = {}
    for phase in iterated.PHASES:
        rest = tuple(each for each in iterated.PHASES if each is not phase)
        found[f"phase {phase.__name__}"] = ((iterated, "PHASES", rest),)
    for change in refine.CHANGES:
        less = tuple(each for each in refine.CHANGES if each is not change)
        name = f"changes {change.__name__.strip('_')}"
        found[name] = ((refine, "CHANGES", less), (iterated, "CHANGES", less))
    found["history"] = ((iterated.HistoryHeuristic, "adapted", lambda self, state: state),)
    found["small values"] = (
        (refine, "replicate_small_values", lambda problem, state, limit: state),
    )
    found["simplified starts"] = ((iterated, "simplified", lambda problem, state: state),)
    return found


@dataclasses.dataclass(frozen=True)
class Found:
    """A plan that a search found."""

    step_time: float
    seconds: float
    """Of CPU."""


def search(problem: Problem, budget: int, seed: int, changes: Sequence[Change] = ()) -> Found:
    """Runs the default search, some parts of it changed."""
    with contextlib.ExitStack() as changed:
        for each in changes:
            changed.enter_context(mock.patch.object(*each))
        start = time.process_time()
        with paused():
            best = iterated_search(problem, budget, seed, lambda done, best: None)
        return Found(step_time(problem, best), time.process_time() - start)


def measured(
    make: Callable[[], Problem], budget: int, seeds: int, names: Sequence[str]
) -> dict[str, list[Found]]:
    """What searches of one case find: whole, by the name `all`, and without each part."""
    known = parts()
    search(make(), budget, 0)  # warms up what problems of one program share
    return {
        name: [search(make(), budget, seed, known.get(name, ())) for seed in range(seeds)]
        for name in ("all", *names)
    }


def slower(whole: Sequence[Found], less: Sequence[Found]) -> float:
    """How much slower plans are without a part, of equal seeds: 0.01 is one percent."""
    pairs = zip(whole, less, strict=True)
    return statistics.mean(part.step_time / full.step_time - 1 for full, part in pairs)


def table(results: Mapping[str, Mapping[str, Sequence[Found]]], names: Sequence[str]) -> Table:
    """A row for each part: how much slower plans are without it, and the seconds of all."""
    shown = Table("left out", *results, "mean", "worst", "best", "CPU s", box=None)
    for name in names:
        worth = [slower(found["all"], found[name]) for found in results.values()]
        spent = sum(each.seconds for found in results.values() for each in found[name])
        cells = (
            f"{each:+.2%}" for each in (*worth, statistics.mean(worth), max(worth), min(worth))
        )
        shown.add_row(name, *cells, f"{spent:.0f}")
    spent = sum(each.seconds for found in results.values() for each in found["all"])
    shown.add_row("nothing", *[""] * (len(results) + 3), f"{spent:.0f}")
    return shown


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="PART...", help="Parts; all by default.")
    ] = None,
    budget: Annotated[int, typer.Option(help="Plans that a search may estimate.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Seeds of each search.")] = 1,
    cases: Annotated[int, typer.Option(help="How many cases, the first ones.")] = len(CASES),
) -> None:
    """Leave parts of the search out, one by one, and show what that costs."""
    chosen, problems = list(names or parts()), Problems()
    unknown = [name for name in chosen if name not in parts()]
    if unknown:
        raise typer.BadParameter(f"no part {unknown[0]!r}; parts are {', '.join(parts())}")
    results = {}
    for case in CASES[:cases]:
        results[case.name] = measured(functools.partial(problems.of, case), budget, seeds, chosen)
    Console(width=200).print(table(results, chosen))


if __name__ == "__main__":
    app()
