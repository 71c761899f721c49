"""From the options of a command to a plan."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import partita as pt
from partita import models
from partita.cli.interrupt import Interruptible
from partita.cli.options import HARDWARE, MemoryOption, Model
from partita.cli.output import error, note
from partita.cli.torch import from_torch
from partita.errors import renamed
from partita.report.progress import progress_bar
from partita.search import ALGORITHMS, BUDGET
from partita.text import console


class Frontend(enum.StrEnum):
    """What a program is written in."""

    JAX = "jax"
    TORCH = "torch"


def _renamed(value: bool) -> bool:
    if value:
        renamed("--lift-constants", "--hoist-constants")
    return value


@dataclasses.dataclass(frozen=True)
class Planning:
    """The options that say what to plan, for which devices, and with which tactics."""

    model: Model
    hardware: Annotated[str | None, HARDWARE]
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Axes and sizes, for example data=4,model=2; this or --devices is required."
        ),
    ] = None
    devices: Annotated[
        int | None,
        typer.Option(
            help="How many devices; the best mesh of so many is chosen. Its axes are x, y and z."
        ),
    ] = None
    manual: Annotated[
        list[str] | None,
        typer.Option(
            help="A manual tactic PATTERN:DIM@AXIS, for example 'batch*:0@data'. Repeatable; "
            "applied in order before the search.",
        ),
    ] = None
    axes: Annotated[
        str | None,
        typer.Option(
            help="Axes for the search, comma-separated; 'none' for no search. All by default."
        ),
    ] = None
    microbatches: Annotated[
        int | None,
        typer.Option(
            help="Run a step in so many micro-batches. By default, as many as a search needs to "
            "make the plan fit; 1 for none.",
        ),
    ] = None
    memory: MemoryOption = None
    budget: Annotated[int, typer.Option(help="Plans that the search may evaluate.")] = BUDGET
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0
    search: Annotated[
        str, typer.Option(help=f"The search algorithm: {' or '.join(sorted(ALGORITHMS))}.")
    ] = "iterated"
    workers: Annotated[
        int,
        typer.Option(
            help="Searches to run at once, each with the whole budget; all but one in a "
            "process of its own.",
        ),
    ] = 1
    frontend: Annotated[
        Frontend,
        typer.Option(
            help="What the model is written in. With torch, function() returns (module, args), "
            "(module, args, kwargs), or a dict of arguments of partita.torch.plan; a .pt2 file of "
            "torch.export.save needs no option.",
        ),
    ] = Frontend.JAX
    hoist_constants: Annotated[
        bool,
        typer.Option(
            "--hoist-constants",
            help="Make closed-over constants arguments named constants[0], ..., which can be "
            "sharded.",
        ),
    ] = False
    lift_constants: Annotated[
        bool, typer.Option("--lift-constants", hidden=True, callback=_renamed)
    ] = False
    """The former name of `hoist_constants`."""

    def plan(
        self, tactics: Sequence[pt.Tactic] | None = None, target: str | None = None
    ) -> pt.Plan:
        """The plan of the model over the mesh, or over the best of so many devices.

        It is named as on the command line; a terminal shows how far a search is.

        Args:
          tactics: in place of those that the options say.
          target: what a module of PyTorch is planned for.
        """
        if self.hardware is None:
            raise pt.HardwareError("give --hardware, a device type such as tpu_v5e or a .toml file")
        self.check_mesh()
        options = {
            "mesh": self.mesh,
            "devices": self.devices,
            "hardware": self.hardware,
            "memory": self.memory,
            "tactics": self.schedule() if tactics is None else tactics,
        }
        planned = self._planned(target)
        with progress_bar(console(stderr=True)) as progress, Interruptible(progress) as told:
            made = planned(progress=told, **options)
        if told.interrupted:
            note("interrupted: this is the best plan so far")
        return made

    def _planned(self, target: str | None) -> Callable[..., pt.Plan]:
        """Returns `partita.plan` or the like, for the model."""
        if self.frontend is Frontend.TORCH or Path(self.model).suffix == ".pt2":
            return from_torch(self.model, target)
        if target is not None:
            raise pt.OptionError("--target is for modules of PyTorch: give --frontend torch, too")
        loaded = models.load(self.model)
        return functools.partial(
            pt.plan,
            loaded.fn,
            *loaded.args,
            donate_argnums=loaded.donate_argnums,
            hoist_constants=self.hoist_constants or self.lift_constants,
        )

    @property
    def device_count(self) -> int:
        """How many devices the mesh has; 0 if neither it nor their number is given."""
        return self.devices or 0 if self.mesh is None else pt.Mesh.of(self.mesh).devices

    def check_mesh(self) -> None:
        """A `MeshError` unless one of the mesh and its number of devices is given."""
        if (self.mesh is None) == (self.devices is None):
            number = "one of them" if self.mesh is None else "either, not both"
            raise pt.MeshError(
                f"give {number}: --mesh, such as data=8, or --devices, how many devices the mesh "
                "should have that is chosen"
            )

    def schedule(self) -> list[pt.Tactic]:
        """The manual tactics in order, and a search after them unless `axes` is `none`."""
        steps = [] if self.microbatches is None else [pt.Microbatch(self.microbatches)]
        manual = map(manual_tactic, self.manual or [])
        return [*steps, *manual, *([] if self.axes == "none" else [self.automatic()])]

    def automatic(self) -> pt.AutomaticPartition:
        """The search that the options say."""
        return pt.AutomaticPartition(
            None if self.axes in (None, "none") else self.axes.split(","),
            budget=self.budget,
            seed=self.seed,
            search=self.search,
            workers=self.workers,
        )

    def check_manual(self, plan: pt.Plan) -> None:
        """Ends with exit code 1 if a manual tactic has tiled nothing, and says which and why.

        What was printed before is right, but it is not what was asked for.
        """
        names = {manual_tactic(text).name for text in self.manual or []}
        missed = [
            entry
            for entry in plan.history
            if entry.name in names and entry.refused and not entry.actions
        ]
        for entry in missed:
            error(f"{entry.name} tiled nothing: {'; '.join(map(str, entry.refused))}")
        if missed:
            raise typer.Exit(1)


def loaded(plan: Path, model: str, **options: Any) -> pt.Plan:
    """The plan of a file, for a model; the options are those of `partita.load`."""
    found = models.load(model)
    return pt.load(plan, found.fn, *found.args, **options)


def manual_tactic(text: str) -> pt.ManualPartition:
    """The tactic of `PATTERN:DIM@AXIS`; a `TacticError` if it cannot be read."""
    match = re.fullmatch(r"(.+):(-?\d{1,9}|replicate)@(\w+)", text)
    if not match:
        raise pt.TacticError(
            f"cannot read --manual {text!r}; expected PATTERN:DIM@AXIS, as in 'batch*:0@data'"
        )
    dim: Any = match[2] if match[2] == "replicate" else int(match[2])
    return pt.ManualPartition({match[1]: dim}, axis=match[3])
