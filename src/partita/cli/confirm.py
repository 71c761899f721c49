"""`partita plan --confirm`: a compiler chooses between the candidates of a search."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.markup import escape

import partita as pt
from partita.cli.options import CompilerOption
from partita.text import Text, console
from partita.verify.backends import backend_for, topologies
from partita.verify.compile import compiler_options


@dataclasses.dataclass(frozen=True)
class Confirming:
    """The options that have a compiler choose."""

    confirm: Annotated[
        int | None,
        typer.Option(
            help="Compile so many of the best different candidates of the search for --topology, "
            "and go on with the quickest that fits.",
        ),
    ] = None
    topology: Annotated[
        str | None,
        typer.Option(help=f"With --confirm, the devices to compile for: {escape(topologies())}."),
    ] = None
    compiler_option: CompilerOption = None

    def check(self, devices: int) -> None:
        """Complains of what does not go together, before the work, and makes this process ready to
        compile for a mesh of so many devices."""
        if self.confirm is None:
            if self.topology is not None or self.compiler_option:
                raise pt.OptionError(
                    "--topology and --compiler-option are for --confirm: give it, too"
                )
            return
        if self.topology is None:
            raise pt.OptionError(
                f"--confirm takes --topology, the devices to compile for: {topologies()}"
            )
        compiler_options(self.compiler_option or [])
        backend_for(self.topology).prepare(devices)

    def confirmed(self, plan: pt.Plan) -> pt.Confirmation | None:
        """Has the compiler choose, if that is asked; a terminal shows how far it is."""
        if self.confirm is None:
            return None
        with console(stderr=True).status("") as status:

            def told(done: int, total: int, text: str) -> None:
                status.update(Text(f"compiling plan {done + 1} of {total}: {text}"))

            return pt.confirm(
                plan,
                self.topology,
                count=self.confirm,
                compiler_options=compiler_options(self.compiler_option or []),
                progress=told,
            )
