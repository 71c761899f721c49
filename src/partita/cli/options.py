"""Arguments and options that several commands take."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from partita.errors import renamed
from partita.search import ALGORITHMS

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


Model = Annotated[
    str,
    typer.Argument(
        help="A built-in model (gpt-tiny, llama3-8b, ...; a wrong name lists them), "
        "path/to/file.py:function, where function() returns (fn, args), or a StableHLO file "
        "(.mlir, .mlirbc, or a serialized jax.export.Exported)."
    ),
]


class Frontend(enum.StrEnum):
    """What a program is written in."""

    JAX = "jax"
    TORCH = "torch"


FrontendOption = Annotated[
    Frontend,
    typer.Option(
        "--frontend",
        help="What the model is written in. With torch, function() returns (module, args), "
        "(module, args, kwargs), or a dict of arguments of partita.torch.plan; a .pt2 file of "
        "torch.export.save needs no option.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="With --frontend torch, what the plan is for: dtensor keeps it to what "
        "partita.torch can apply to the module.",
    ),
]
MeshOption = Annotated[
    str, typer.Option("--mesh", help="Axes and sizes, for example data=4,model=2.")
]
MeshOrDevicesOption = Annotated[
    str | None,
    typer.Option(
        "--mesh", help="Axes and sizes, for example data=4,model=2; this or --devices is required."
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        help="How many devices; the best mesh of so many is chosen. Its axes are x, y and z.",
    ),
]
HARDWARE = typer.Option(
    "--hardware", help="A device type (see `partita hardware`) or a .toml file."
)
HardwareOption = Annotated[str, HARDWARE]
ManualOption = Annotated[
    list[str] | None,
    typer.Option(
        "--manual",
        help="A manual tactic PATTERN:DIM@AXIS, for example 'batch*:0@data'. Repeatable; "
        "applied in order before the search.",
    ),
]
AxesOption = Annotated[
    str | None,
    typer.Option(
        "--axes",
        help="Axes for the search, comma-separated; 'none' for no search. All by default.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", help="Memory per device that may be used, for example 12GiB."),
]
BudgetOption = Annotated[int, typer.Option("--budget", help="Plans that the search may evaluate.")]
SearchOption = Annotated[
    str,
    typer.Option(
        "--search",
        help=f"The search algorithm: {' or '.join(sorted(ALGORITHMS))}.",
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        help="Searches to run at once, each with the whole budget; all but one in a "
        "process of its own.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the search.")]
HoistOption = Annotated[
    bool,
    typer.Option(
        "--hoist-constants",
        help="Make closed-over constants arguments named constants[0], ..., which can be sharded.",
    ),
]


def _renamed(value: bool) -> bool:
    if value:
        renamed("--lift-constants", "--hoist-constants")
    return value


LiftOption = Annotated[bool, typer.Option("--lift-constants", hidden=True, callback=_renamed)]
"""The former name of `--hoist-constants`."""
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        help="Write a report page to this file: one .html that opens in any browser and loads "
        "nothing; .json for its data.",
    ),
]
PartitionedOption = Annotated[
    Path | None,
    typer.Option(
        "--partitioned",
        help="Write the program that the plan runs, collectives and all: .mlir is text, "
        ".mlirbc bytecode, .bin a serialized jax.export.Exported.",
    ),
]
AnnotatedOption = Annotated[
    Path | None,
    typer.Option(
        "--annotated",
        help="Write the original program with shardings on its values, for a compiler that "
        "partitions by itself. Endings as above.",
    ),
]
CompilerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--compiler-option",
        metavar="NAME=VALUE",
        help="A further option of the compiler; repeatable.",
    ),
]
StrictOption = Annotated[
    str | None,
    typer.Option(
        "--strict",
        help="Exit with status 1 for what the report only mentions: 'all', or some of refused, "
        "donation, constraints, replicated, idle and memory, comma-separated; replicated=64MiB "
        "says from which size on.",
    ),
]
