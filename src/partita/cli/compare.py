"""`partita compare`: plan files side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from partita.cli.options import JsonOption
from partita.cli.output import show, show_json
from partita.files import write
from partita.report.compare import ComparisonData, comparison, side_of_file, view
from partita.report.page.comparison import comparison_page


def compare(
    plans: Annotated[
        list[Path], typer.Argument(help="Files that `partita plan --save` wrote; two or more.")
    ],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write them side by side to this page, too.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print saved plans side by side: cost, collectives, and what is sharded otherwise.

    No model is needed: what the files say is compared.
    """
    if len(plans) < 2:
        raise typer.BadParameter("give two plan files or more")
    hand_out(
        comparison([side_of_file(path) for path in plans]), "Plans side by side", html, as_json
    )


def hand_out(found: ComparisonData, title: str, html: Path | None, as_json: bool) -> None:
    """Writes and prints a comparison."""
    if html is not None:
        write(html, comparison_page(found, title).encode())
    if as_json:
        show_json(dataclasses.asdict(found))
    else:
        show(view(found))
