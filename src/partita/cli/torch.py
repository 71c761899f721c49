"""Modules of PyTorch on the command line: from a user's file, or a file of `torch.export.save`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import partita as pt
from partita import models


def from_torch(model: str, target: str | None) -> Callable[..., pt.Plan]:
    """Returns what plans a module of torch with the options of `partita.plan`, in torch's names."""
    try:
        from partita import torch  # only who plans modules of torch has it
    except ModuleNotFoundError as error:
        raise pt.ModelError(str(error)) from error
    if Path(model).suffix == ".pt2":
        make = functools.partial(torch.read, model, target=target)
    else:
        make = functools.partial(torch.plan, **_arguments(model), target=target)
    return lambda **options: make(**options).plan


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
