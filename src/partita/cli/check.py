"""`partita check`: a plan file held to what a model has become."""

from __future__ import annotations

from typing import Annotated

import typer

from partita.cli.options import JsonOption, Model, PlanFile
from partita.cli.output import note, show, show_json
from partita.cli.planned import loaded
from partita.saved.check import MEMORY, STEP
from partita.testing import check_plan


def check(
    plan: PlanFile,
    model: Model,
    hardware: Annotated[
        str | None,
        typer.Option(help="The .toml file of the plan's device type, if partita has none for it."),
    ] = None,
    step: Annotated[
        float,
        typer.Option("--step-tolerance", help="How many times as long a step may take."),
    ] = STEP,
    memory: Annotated[
        float,
        typer.Option("--memory-tolerance", help="How many times as much the peak may be."),
    ] = MEMORY,
    update: Annotated[
        bool, typer.Option("--update", help="Write the plan as it is now to the file.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that a model still has the plan that a file says, and print the difference as a diff.

    If the model has changed, the tactics of the file decide again; nothing is searched. The exit
    status is 1 if a sharding has changed, a collective was added, or time or memory have grown past
    the tolerance; it is 0 after --update.
    """
    made = loaded(plan, model, hardware=hardware, rebase=True)
    found = check_plan(made, plan, step, memory)
    found = found.named(str(plan), model)
    if as_json:
        show_json(found.as_dict())
    else:
        show(str(found))
    if update and found.differs:
        made.save(plan)
        note(f"{plan} is written")
    raise typer.Exit(0 if found.passed or update else 1)
