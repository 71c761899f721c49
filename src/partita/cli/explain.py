"""`partita explain`: why values are split as they are, and what collectives are for."""

from __future__ import annotations

from typing import Annotated

import typer

import partita as pt
from partita.cli.options import JsonOption
from partita.cli.output import show, show_json
from partita.cli.planned import Planning
from partita.explain import ALTERNATIVES, EVERY


def explain(
    options: Planning,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="Names or patterns of arguments, results and tagged values; %12, a value by its "
            "number; file.py:12, what is made at a line; or the number of a collective.",
        ),
    ] = None,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="Explain all collectives, longest first.")
    ] = False,
    alternatives: Annotated[
        int, typer.Option(help="Changes that may be tried and estimated, for each name.")
    ] = ALTERNATIVES,
    as_json: JsonOption = False,
) -> None:
    """Explain why values are split as they are, and what collectives are for."""
    wanted = [*(names or []), *([EVERY] if collectives else [])]
    if not wanted:
        raise pt.UnknownNameError(
            "say what to explain: names or patterns such as 'batch*', or --collectives"
        )
    made = options.plan()
    found = [made.explain(what, alternatives) for what in wanted]
    if as_json:
        show_json([entry for each in found for entry in each.as_dicts()])
    else:
        show("\n\n".join(map(str, found)))
    options.check_manual(made)
