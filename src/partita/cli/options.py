"""Options that several commands take, and groups of options, which commands take as one argument.

A group is a data class whose fields are arguments and options as typer reads them. Typer knows no
groups: `grouped` shows it the fields in place of the group.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from partita.verify.backends import topologies

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Model = Annotated[
    str,
    typer.Argument(
        help="A built-in model (gpt-tiny, llama3-8b, ...; a wrong name lists them), "
        "path/to/file.py:function, where function() returns (fn, args), or a StableHLO file "
        "(.mlir, .mlirbc, or a serialized jax.export.Exported)."
    ),
]
PlanFile = Annotated[Path, typer.Argument(help="A file that `partita plan --save` wrote.")]
HARDWARE = typer.Option(help="A device type (see `partita hardware`) or a .toml file.")
MemoryOption = Annotated[
    str | None, typer.Option(help="Memory per device that may be used, for example 12GiB.")
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        help="Write a report page to this file: one .html that opens in any browser and loads "
        "nothing; .json for its data.",
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        help="Devices to compile for, which need not be there: "
        f"{escape(topologies())}. Host devices by default."
    ),
]
CompilerOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A further option of the compiler; repeatable."),
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command as typer reads it: with the options of its groups as its own."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        n: hint for n, hint in hints.items() if dataclasses.is_dataclass(hint)
    }

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in dataclasses.fields(group)})
        command(**given)

    parameters = _parameters(inspect.signature(command).parameters, hints, groups)
    flat.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    return flat


def _parameters(
    declared: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], groups: Mapping[str, Any]
) -> Iterator[inspect.Parameter]:
    """Yields the parameters of a signature with the fields of its groups in their place."""
    for name, parameter in declared.items():
        if name in groups:
            fields = typing.get_type_hints(groups[name], include_extras=True)
            yield from _parameters(inspect.signature(groups[name]).parameters, fields, {})
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            yield parameter.replace(annotation=hints[name], kind=kind)
