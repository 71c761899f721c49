"""`partita explain`: why values are split as they are, and what collectives are for."""

from __future__ import annotations

from typing import Annotated

import typer

import partita as pt
from partita.cli.options import (
    AxesOption,
    BudgetOption,
    DevicesOption,
    Frontend,
    FrontendOption,
    HardwareOption,
    HoistOption,
    JsonOption,
    LiftOption,
    ManualOption,
    MemoryOption,
    MeshOrDevicesOption,
    Model,
    SearchOption,
    SeedOption,
    WorkersOption,
)
from partita.cli.output import show, show_json
from partita.cli.planned import check_manual, check_mesh, planned, schedule
from partita.explain import ALTERNATIVES, EVERY
from partita.search import BUDGET


def explain(
    model: Model,
    hardware: HardwareOption,
    mesh: MeshOrDevicesOption = None,
    devices: DevicesOption = None,
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
    manual: ManualOption = None,
    axes: AxesOption = None,
    memory: MemoryOption = None,
    budget: BudgetOption = BUDGET,
    seed: SeedOption = 0,
    search: SearchOption = "iterated",
    workers: WorkersOption = 1,
    frontend: FrontendOption = Frontend.JAX,
    hoist_constants: HoistOption = False,
    lift_constants: LiftOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain why values are split as they are, and what collectives are for."""
    check_mesh(mesh, devices)
    wanted = [*(names or []), *([EVERY] if collectives else [])]
    if not wanted:
        raise pt.UnknownNameError(
            "say what to explain: names or patterns such as 'batch*', or --collectives"
        )
    tactics = schedule(manual or [], axes, budget, seed, search, workers)
    hoist = hoist_constants or lift_constants
    made = planned(model, mesh, hardware, tactics, memory, hoist, devices, frontend)
    found = [made.explain(what, alternatives) for what in wanted]
    if as_json:
        show_json([entry for each in found for entry in each.as_dicts()])
    else:
        show("\n\n".join(map(str, found)))
    check_manual(made, manual or [])
