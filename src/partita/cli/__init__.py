"""The command `partita`: plans from the terminal."""

from __future__ import annotations

from typing import Annotated

import jax
import typer

from partita.cli.check import check
from partita.cli.compare import compare
from partita.cli.explain import explain
from partita.cli.hardware import calibrate, hardware
from partita.cli.models import models
from partita.cli.options import grouped
from partita.cli.output import run
from partita.cli.plan import plan, show
from partita.cli.simulate import simulate
from partita.cli.verify import verify
from partita.startup import leave_to_python, leave_to_system
from partita.version import __version__

__all__ = ["app", "main", "run"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (plan, show, compare, check, explain, verify, simulate, models, hardware, calibrate):
    app.command()(grouped(command))


def _version(asked: bool) -> None:
    if asked:
        print(f"partita {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Decides how a machine-learning program is split over a mesh of accelerators."""


def main() -> None:
    """Entry point."""
    try:
        leave_to_python()
        if jax.config.jax_platforms is None:  # type: ignore[attr-defined]
            # Planning needs no accelerator; do not take one away from whoever is using it.
            jax.config.update("jax_platforms", "cpu")
        run(app)
    finally:
        leave_to_system()
