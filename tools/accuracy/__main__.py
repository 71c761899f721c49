"""The command behind `make accuracy`."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from partita.cli import run
from partita.errors import ModelError, closest
from partita.verify.backends import backend_for
from tools.accuracy.cells import BY_NAME, MODELS, SINGLE, TOPOLOGIES, Cell, cells
from tools.accuracy.keep import How, versions
from tools.accuracy.run import complete, measure
from tools.accuracy.table import data, markdown, view

WIDTH = 150
"""Columns of what is not printed to a terminal."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help=f"Some of {', '.join([*MODELS, *SINGLE])}; all by default."
        ),
    ] = None,
    schedules: Annotated[
        list[str] | None,
        typer.Option("--schedule", help=f"One of {', '.join(BY_NAME)}; repeatable."),
    ] = None,
    topologies: Annotated[
        list[str] | None,
        typer.Option("--topology", help=f"One of {', '.join(TOPOLOGIES)}; repeatable."),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="File that results are kept in; what it has is not done again.")
    ] = Path("accuracy.jsonl"),
    compiled: Annotated[
        Path, typer.Option(help="Folder that compiled programs are kept in.")
    ] = Path("accuracy"),
    limit: Annotated[float, typer.Option(help="Seconds for a cell.")] = 900,
    again: Annotated[
        bool, typer.Option("--again", help="Do cells again that have failed or taken too long.")
    ] = False,
    combine: Annotated[
        bool,
        typer.Option(
            "--combine/--no-combine",
            help="Whether the compiler may combine small sums into one collective.",
        ),
    ] = True,
    compiler_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A further option of the compiler; repeatable."),
    ] = None,
    one: Annotated[
        tuple[str, str, str] | None,
        typer.Option(help="Measure this cell in this process, and print its line.", hidden=True),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, with the date and the versions.")
    ] = False,
) -> None:
    """Compile plans for given devices, and print what was predicted beside what was compiled."""
    how = How(combine, tuple(compiler_option or ()))
    if one is not None:
        print(msgspec.json.encode(measure(Cell(*one), compiled, how)).decode())
        return
    _check("model", models, [*MODELS, *SINGLE])
    _check("schedule", schedules, BY_NAME)
    _check("topology", topologies, TOPOLOGIES)
    wanted = [
        cell
        for cell in cells()
        if (not models or cell.model in models)
        and (not schedules or cell.schedule in schedules)
        and (not topologies or cell.topology in topologies)
    ]
    found = []
    with Console(stderr=True).status("") as status:
        for cell, result in complete(wanted, results, compiled, limit, again, how):
            if result is None:
                status.update(f"{cell.model}, {cell.schedule}, {cell.topology}")
            else:
                found.append(result)
    if as_json:
        print(json.dumps(data(found), indent=2))
    elif as_markdown:
        compilers = versions(*(backend_for(result.cell.topology) for result in found))
        print(markdown(found, compilers, datetime.date.today().isoformat()))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = WIDTH
        console.print(view(found))


def _check(what: str, given: list[str] | None, known: Iterable[str]) -> None:
    for name in given or ():
        if name not in known:
            raise ModelError(
                f"no {what} {name!r}{closest(name, known)}; expected {', '.join(known)}"
            )


if __name__ == "__main__":
    run(app)
