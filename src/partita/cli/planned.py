"""From the options of a command to a plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

import partita as pt
from partita import models
from partita.cli.interrupt import Interruptible
from partita.cli.options import Frontend
from partita.cli.output import error, note
from partita.cli.torch import from_torch
from partita.planning.strict import Strict, kinds
from partita.report.progress import progress_bar
from partita.text import console


def planned(
    model: str,
    mesh: str | None,
    hardware: str,
    tactics: list[pt.Tactic],
    memory: str | None,
    hoist_constants: bool,
    devices: int | None = None,
    frontend: Frontend = Frontend.JAX,
    target: str | None = None,
) -> pt.Plan:
    """The plan of a model over a mesh, or over the best of so many devices.

    It is named as on the command line; a terminal shows how far a search is.
    """
    if frontend is Frontend.TORCH or Path(model).suffix == ".pt2":
        return from_torch(model, mesh, hardware, tactics, memory, devices, target)
    if target is not None:
        raise pt.OptionError("--target is for modules of PyTorch: give --frontend torch, too")
    loaded = models.load(model)
    with progress_bar(console(stderr=True)) as progress, Interruptible(progress) as told:
        made = pt.plan(
            loaded.fn,
            *loaded.args,
            mesh=mesh,
            devices=devices,
            hardware=hardware,
            tactics=tactics,
            memory=memory,
            donate_argnums=loaded.donate_argnums,
            hoist_constants=hoist_constants,
            progress=told,
        )
    if told.interrupted:
        note("interrupted: this is the best plan so far")
    return made


def check_mesh(mesh: str | None, devices: int | None) -> None:
    """A `MeshError` if not one of the two is given."""
    if (mesh is None) == (devices is None):
        number = "one of them" if mesh is None else "either, not both"
        raise pt.MeshError(
            f"give {number}: --mesh, such as data=8, or --devices, how many devices the mesh "
            "should have that is chosen"
        )


def rebased(
    plan: Path, model: str, mesh: str | None, hardware: str | None, memory: str | None
) -> pt.Plan:
    """What the tactics of a plan file decide for a model that may have changed since."""
    loaded = models.load(model)
    return pt.load(
        plan, loaded.fn, *loaded.args, mesh=mesh, hardware=hardware, memory=memory, rebase=True
    )


def schedule(
    manual: list[str], axes: str | None, budget: int, seed: int, search: str, workers: int
) -> list[pt.Tactic]:
    """The manual tactics in order, and a search after them unless `axes` is `none`."""
    tactics: list[pt.Tactic] = [manual_tactic(text) for text in manual]
    if axes != "none":
        named = None if axes is None else axes.split(",")
        search_on = pt.AutomaticPartition(
            named, budget=budget, seed=seed, search=search, workers=workers
        )
        tactics.append(search_on)
    return tactics


def manual_tactic(text: str) -> pt.ManualPartition:
    """The tactic of `PATTERN:DIM@AXIS`; a `TacticError` if it cannot be read."""
    match = re.fullmatch(r"(.+):(-?\d{1,9}|replicate)@(\w+)", text)
    if not match:
        raise pt.TacticError(
            f"cannot read --manual {text!r}; expected PATTERN:DIM@AXIS, as in 'batch*:0@data'"
        )
    dim: Any = match[2] if match[2] == "replicate" else int(match[2])
    return pt.ManualPartition({match[1]: dim}, axis=match[3])


def strictness(text: str | None) -> Strict:
    """What `--strict` asks for, as `partita.plan` takes it; complains before the work."""
    if text is None or text == "all":
        return text is not None
    parts = (part.partition("=") for part in text.split(","))
    strict = {name: size if given else True for name, given, size in parts}
    kinds(strict)
    return strict


def check_strict(plan: pt.Plan, strict: Strict) -> None:
    """Ends with exit code 1 if a plan has what `--strict` forbids, and says what."""
    found = plan.problems(strict)
    for problem in found:
        error(problem)
    if found:
        raise typer.Exit(1)


def check_manual(plan: pt.Plan, manual: list[str]) -> None:
    """Ends with exit code 1 if a manual tactic has tiled nothing, and says which and why.

    What was printed before is right, but it is not what was asked for.
    """
    names = {manual_tactic(text).name for text in manual}
    missed = [
        entry
        for entry in plan.history
        if entry.name in names and entry.refused and not entry.actions
    ]
    for entry in missed:
        error(f"{entry.name} tiled nothing: {'; '.join(map(str, entry.refused))}")
    if missed:
        raise typer.Exit(1)
