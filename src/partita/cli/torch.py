"""Modules of PyTorch on the command line: from a user's file, or a file of `torch.export.save`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import partita as pt
from partita import models
from partita.cli.interrupt import Interruptible
from partita.cli.output import note
from partita.report.progress import progress_bar
from partita.text import console


def from_torch(
    model: str,
    mesh: str | None,
    hardware: str,
    tactics: list[pt.Tactic],
    memory: str | None,
    devices: int | None,
    target: str | None,
) -> pt.Plan:
    """The plan of a module of torch, in the names of torch."""
    try:
        from partita import torch  # only who plans modules of torch has it
    except ModuleNotFoundError as error:
        raise pt.ModelError(str(error)) from error
    asked = None if Path(model).suffix == ".pt2" else _arguments(model)
    options: dict[str, Any] = {
        "mesh": mesh,
        "devices": devices,
        "target": target,
        "hardware": hardware,
        "tactics": tactics,
        "memory": memory,
    }
    with progress_bar(console(stderr=True)) as progress, Interruptible(progress) as told:
        if asked is None:
            made = torch.read(model, progress=told, **options)
        else:
            made = torch.plan(**asked, progress=told, **options)
    if told.interrupted:
        note("interrupted: this is the best plan so far")
    return made.plan


def _arguments(model: str) -> dict[str, Any]:
    """What the function of a user's file says to plan, as arguments of `partita.torch.plan`."""
    make = models.maker(model)
    try:
        made = make()
    except Exception as error:
        raise pt.ModelError(f"{model} fails: {type(error).__name__}: {error}") from error
    if isinstance(made, tuple) and 2 <= len(made) <= 3:
        made = dict(zip(("module", "args", "kwargs"), made, strict=False))
    if not (isinstance(made, dict) and "module" in made):
        raise pt.ModelError(
            f"{model} returned {type(made).__name__}; expected (module, args), (module, args, "
            "kwargs), or a dict of arguments of partita.torch.plan, such as module, args, loss, "
            "targets and optimizer"
        )
    return made
