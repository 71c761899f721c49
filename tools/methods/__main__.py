"""`python -m tools.methods`: methods x models x meshes x device types, at equal budgets."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partita import models as presets
from partita.errors import closest
from tools.methods import METHODS
from tools.methods.cases import FREE, LARGER, MESHES, MODELS, Case, Problems
from tools.methods.runs import Run, append, bounds, load, run
from tools.methods.table import draw, markdown

DETERMINISTIC = ("beam", "exhaustive", "greedy", "refine")
"""Methods that are the same for all seeds."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help=f"Some of {', '.join(MODELS)}, or presets; these by default."
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help=f"One of {', '.join(sorted(METHODS))}; repeatable."),
    ] = None,
    meshes: Annotated[
        list[str] | None,
        typer.Option("--mesh", help=f"One of {', '.join(MESHES)}, or axes; repeatable."),
    ] = None,
    hardware: Annotated[list[str] | None, typer.Option(help="A device type; repeatable.")] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a device: 'all', 'tight' (little more than the least that a start of a search "
            "takes), 'least*1.02' (as many times the least that is found), or a size; repeatable."
        ),
    ] = None,
    budget: Annotated[int, typer.Option(help="States that are evaluated in a run.")] = 500,
    seeds: Annotated[int, typer.Option(help="Seeds of methods that are random.")] = 5,
    results: Annotated[
        Path, typer.Option(help="File that runs are kept in; what it has is not done again.")
    ] = Path("methods.jsonl"),
    picture: Annotated[
        Path | None, typer.Option(help="Draw quality over time to this file (.svg, .png).")
    ] = None,
    only_show: Annotated[bool, typer.Option("--show", help="Run nothing, only show.")] = False,
) -> None:
    """Compare methods of search: regret against the best plan that any run has found."""
    for known, asked in (({*MODELS, *LARGER, *presets.names()}, models), (METHODS, methods)):
        for name in asked or ():
            if name not in known:
                raise typer.BadParameter(f"there is no {name!r}{closest(name, known)}")
    runs = list(load(results))
    cases = [
        Case(*each)
        for each in itertools.product(
            models or MODELS, meshes or MESHES, hardware or ["tpu_v5e"], memory or [FREE]
        )
    ]
    problems, out = Problems(), Console(stderr=True)
    if not only_show:
        done = {each.key for each in runs}
        for case, method in itertools.product(cases, methods or sorted(METHODS)):
            for seed in range(1 if method in DETERMINISTIC else seeds):
                if (case, method, budget, seed) not in done:
                    runs.append(run(problems, case, method, budget, seed))
                    append(results, runs[-1])
                    out.print(_said(runs[-1]))
    wanted = [each for each in runs if each.case in cases]
    bounded = [case for case in cases if any(each.case == case for each in wanted)]
    print(markdown(wanted, budget, bounds(problems, bounded, results.with_suffix(".bounds.json"))))
    if picture:
        draw(wanted, budget, picture)


def _said(of: Run) -> str:
    what = of.refused or f"{of.step_time * 1e3:.4g} ms, {of.moves} moves"
    return f"{of.case.name} {of.method} seed {of.seed}: {what} ({of.seconds:.1f} s)"


if __name__ == "__main__":
    app()
