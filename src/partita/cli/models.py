"""`partita models`: the models that come with partita."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita import models as built_in
from partita.cli.options import JsonOption
from partita.cli.output import show, show_json
from partita.models.sizes import Size
from partita.text import Table, new_table


def models(as_json: JsonOption = False) -> None:
    """List the built-in models: the presets of each family, which commands take by name, and how
    large they are."""
    sizes = built_in.sizes.load()
    if as_json:
        show_json(
            [
                {
                    "family": family,
                    "description": built_in.description(family),
                    "presets": list(built_in.presets(family)),
                    "sizes": {
                        preset: dataclasses.asdict(sizes[preset])
                        for preset in built_in.presets(family)
                    },
                }
                for family in built_in.FAMILIES
            ]
        )
    else:
        show(*(_table(family, sizes) for family in built_in.FAMILIES))


def _table(family: str, sizes: Mapping[str, Size]) -> Table:
    table = new_table(built_in.description(family), "preset")
    for column in ("parameters", "operations", "FLOPs of a step"):
        table.add_column(column, justify="right")
    for preset in built_in.presets(family):
        size = sizes[preset]
        table.add_row(preset, _count(size.parameters), f"{size.operations:,}", f"{size.flops:.3g}")
    return table


def _count(number: int) -> str:
    """A large number for people: `8.03 B`."""
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            digits = f"{number / scale:.4g}" if number >= 1000 * scale else f"{number / scale:.3g}"
            return f"{digits} {unit}"
    return str(number)
