"""`partita plan --confirm`: a compiler chooses between the candidates of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

import partita as pt
from partita.text import Text, console
from partita.verify.backends import backend_for, topologies
from partita.verify.compile import compiler_options

ConfirmOption = Annotated[
    int | None,
    typer.Option(
        "--confirm",
        help="Compile so many of the best different candidates of the search for --topology, and "
        "go on with the quickest that fits.",
    ),
]
ConfirmTopologyOption = Annotated[
    str | None,
    typer.Option(
        "--topology",
        help=f"With --confirm, the devices to compile for: {escape(topologies())}.",
    ),
]


def check(
    confirm: int | None,
    topology: str | None,
    options: Sequence[str],
    mesh: str | None,
    devices: int | None,
) -> None:
    """Complains of what does not go together, before the work, and makes this process ready to
    compile for the mesh, or for a mesh of so many devices."""
    if confirm is None:
        if topology is not None or options:
            raise pt.OptionError("--topology and --compiler-option are for --confirm: give it, too")
        return
    if topology is None:
        raise pt.OptionError(
            f"--confirm takes --topology, the devices to compile for: {topologies()}"
        )
    compiler_options(options)
    backend_for(topology).prepare(devices or 0 if mesh is None else pt.Mesh.of(mesh).devices)


def confirmed(
    plan: pt.Plan, count: int, topology: str | None, options: Sequence[str]
) -> pt.Confirmation:
    """Has the compiler choose; a terminal shows how far it is."""
    with console(stderr=True).status("") as status:

        def told(done: int, total: int, text: str) -> None:
            status.update(Text(f"compiling plan {done + 1} of {total}: {text}"))

        return pt.confirm(
            plan,
            topology,
            count=count,
            compiler_options=compiler_options(options),
            progress=told,
        )
