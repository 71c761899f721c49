"""`partita models`: the models that come with partita."""

from __future__ import annotations

from rich.table import Table

from partita import models as built_in
from partita.cli.options import JsonOption
from partita.cli.output import show, show_json
from partita.text import new_table


def models(as_json: JsonOption = False) -> None:
    """List the built-in models: the presets of each family, which commands take by name."""
    if as_json:
        show_json(
            [
                {
                    "family": family,
                    "description": built_in.description(family),
                    "presets": list(built_in.presets(family)),
                }
                for family in built_in.FAMILIES
            ]
        )
    else:
        show(_table())


def _table() -> Table:
    table = new_table("", "presets", "description")
    for family in built_in.FAMILIES:
        table.add_row("\n".join(built_in.presets(family)), built_in.description(family))
    return table
