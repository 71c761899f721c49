"""`partita.torch.plan`: from a module to its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from partita import cost
from partita.api import mesh_and_schedule
from partita.cost import Hardware
from partita.decisions import Progress, silent
from partita.errors import OptionError, TraceError, UnsupportedError
from partita.frontend.calling import Marked
from partita.frontend.trace import Traced, trace
from partita.mesh import Mesh, MeshInput
from partita.options import function
from partita.plan import Plan
from partita.planning.meshes import any_mesh, plan_meshes
from partita.planning.prepare import Prepared, rewritten, targeted
from partita.saved.restore import read_plan
from partita.search import BUDGET
from partita.tactics import Tactic
from partita.tactics.protocol import changes_program
from partita.torch.capture import Captured, capture, read_exported
from partita.torch.optimizers import optimizer_of
from partita.torch.plan import TorchPlan
from partita.torch.step import Step, forward, training
from partita.torch.target import avoided, staying_inside


def plan(
    module: torch.nn.Module,
    args: Sequence[Any] | Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: MeshInput | Mesh | Any = None,
    devices: int | None = None,
    hardware: str | Hardware,
    tactics: Sequence[Tactic] | Tactic | None = None,
    loss: Callable[..., Any] | None = None,
    targets: Any = None,
    optimizer: Any = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = BUDGET,
    target: str | None = None,
    progress: Progress = silent,
) -> TorchPlan:
    """Decides how a module of torch is split over a mesh, and what that costs.

    Nothing is run and no device memory is touched. A module on the meta device is planned like any
    other.

    Args:
      module: in the mode that it is planned for, `train()` or `eval()`.
      args: example inputs of its `forward`: tensors; only shapes and types count.
      kwargs: the same by keyword.
      mesh: a dict of axis sizes, a string such as `"data=4,model=2"`, or a `DeviceMesh`.
      devices: in place of a mesh, how many devices the mesh should have that is chosen.
      hardware: a kind (`partita hardware` lists them), a path to a `.toml` file, or `Hardware`.
      tactics: the schedule, as `partita.plan` takes it.
      loss: a function of the outputs, and of `targets` if they are given. With it, a whole step of
        training is planned: forward, backward, and the update if there is an `optimizer`.
      targets: what the loss compares with: tensors, nested anyhow.
      optimizer: `"adamw"`, `"adam"`, `"sgd"`, one of these classes of `torch.optim`, or an
        instance, whose options count.
      memory: bytes per device that the plan may use, or a string such as `"12GiB"`.
      seed: of the default tactic's search.
      budget: of the default tactic's search, in plans evaluated.
      target: `"dtensor"` for a plan that `TorchPlan.parallelize` can do: searches stay inside of
        what DTensor can express, and other tactics must.
      progress: called with (done, total, text) while a search runs.

    Raises:
      TraceError: `torch.export` cannot capture the module; the message says where.
      UnsupportedError: an operation is not known; the message names it, and its line. Or the plan
        is not for the target.
      PartitaError: of the kind that fits.

    Example:
      >>> import torch
      >>> layer = torch.nn.Linear(64, 32)
      >>> made = plan(layer, torch.zeros(16, 64), mesh={"data": 8}, hardware="h100",
      ...             tactics=[])
      >>> made.placements["weight"]
      (Replicate(),)
    """
    step, captured = stepped(module, args, kwargs, loss, targets, optimizer)
    return planned(
        step,
        captured,
        mesh=mesh,
        devices=devices,
        hardware=hardware,
        tactics=tactics,
        memory=memory,
        seed=seed,
        budget=budget,
        target=target,
        progress=progress,
    )


def read(
    path: str | Path,
    *,
    mesh: MeshInput | Mesh | Any = None,
    devices: int | None = None,
    hardware: str | Hardware,
    tactics: Sequence[Tactic] | Tactic | None = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = BUDGET,
    target: str | None = None,
    progress: Progress = silent,
) -> TorchPlan:
    """Plans the forward that a file of `torch.export.save` (`.pt2`) holds, as `plan` does.

    Raises:
      FileError: the file cannot be read.
      PartitaError: as `plan`.
    """
    captured = read_exported(path)
    return planned(
        forward(captured),
        captured,
        mesh=mesh,
        devices=devices,
        hardware=hardware,
        tactics=tactics,
        memory=memory,
        seed=seed,
        budget=budget,
        target=target,
        progress=progress,
    )


def stepped(
    module: torch.nn.Module,
    args: Sequence[Any] | Any,
    kwargs: Mapping[str, Any] | None,
    loss: Callable[..., Any] | None,
    targets: Any,
    optimizer: Any,
) -> tuple[Step, Captured]:
    """Returns the step to plan of a module, its forward or a step of training, and its capture."""
    if loss is None and (targets is not None or optimizer is not None):
        raise OptionError("targets= and optimizer= are for training: give loss=, too")
    if loss is not None:
        function(loss, "loss")
    known = None if optimizer is None else optimizer_of(optimizer)
    positional = tuple(args) if isinstance(args, tuple | list) else (args,)
    captured = capture(module, positional, kwargs or {}, loss, targets)
    return (forward(captured) if loss is None else training(captured, known)), captured


def planned(
    step: Step,
    captured: Captured,
    *,
    mesh: Any = None,
    devices: int | None = None,
    hardware: str | Hardware,
    tactics: Sequence[Tactic] | Tactic | None,
    memory: float | str | None,
    seed: int,
    budget: int,
    target: str | None = None,
    progress: Progress,
) -> TorchPlan:
    """The plan of a step."""
    avoid = avoided(target)
    given = None if mesh is None else mesh_of(mesh)
    known, schedule = mesh_and_schedule(given, devices, tactics, seed, budget)
    _only_layouts(schedule)
    schedule = staying_inside(schedule, avoid)
    function(progress, "progress")
    device = targeted(hardware, memory)
    if known is None:
        prepared = _prepared(step, any_mesh(devices, device[0]), device, open_mesh=True)
        plan = Plan.of(prepared, *plan_meshes(prepared, schedule, progress))
    else:
        prepared = _prepared(step, known, device)
        plan = Plan.of(prepared, prepared.schedule(schedule, progress))
    made = TorchPlan(plan, step, captured)
    if target is not None and made.refusals:
        raise UnsupportedError(f"no plan for target={target!r}: {'; '.join(made.refusals)}")
    return made


def _only_layouts(schedule: Sequence[Tactic]) -> None:
    """Raises `UnsupportedError` for a tactic that would run another program than the module's."""
    for tactic in schedule:
        if changes_program(tactic):
            raise UnsupportedError(
                f"{tactic.name} changes the program, and PyTorch runs the module as it is: "
                "accumulate gradients in the training loop, and plan one micro-batch"
            )


def load(
    path: str | Path,
    module: torch.nn.Module,
    args: Sequence[Any] | Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    targets: Any = None,
    optimizer: Any = None,
) -> TorchPlan:
    """Loads a plan that `TorchPlan.save` wrote: no search, and no tactic runs.

    Takes what `plan` does, which has to be what the plan is for.

    Raises:
      FileError: the file is missing, damaged, or for another program.
      PartitaError: as `plan`.
    """
    saved = read_plan(path)
    step, captured = stepped(module, args, kwargs, loss, targets, optimizer)
    prepared = _prepared(step, saved.mesh, (cost.load(saved.hardware), saved.capacity))
    saved.check_program(prepared.program, prepared.traced)
    return TorchPlan(Plan.of(prepared, saved.restore(prepared.context())), step, captured)


def _prepared(
    step: Step, mesh: Mesh, target: tuple[Hardware, int], open_mesh: bool = False
) -> Prepared:
    """A step traced, in the names of torch; of an open mesh only the number of devices is known."""
    traced = _traced(step, None if open_mesh else mesh, target[0].platform)
    program = step.named(rewritten(traced.program, mesh))
    return Prepared(step.fn, _with(traced, program), program, mesh, *target)


def _traced(step: Step, mesh: Mesh | None, platform: str) -> Traced:
    marked = Marked(donate_argnums=step.donate)
    try:
        return trace(step.fn, step.args, {}, marked, mesh=mesh, platform=platform)
    except TraceError as error:
        if isinstance(error.__cause__, UnsupportedError):
            raise error.__cause__ from None
        raise


def _with(traced: Traced, program: Any) -> Traced:
    return Traced(program, traced.arguments, traced.results, traced.donate_argnums)


def mesh_of(mesh: Any) -> Mesh:
    """The mesh given as `partita.plan` takes it, or as a `DeviceMesh`, whose axes have names."""
    names = getattr(mesh, "mesh_dim_names", None)
    if names is not None:
        return Mesh(tuple(names), tuple(int(size) for size in mesh.shape))
    if hasattr(mesh, "mesh_dim_names"):
        raise OptionError(
            "mesh= is a DeviceMesh without names: make it with mesh_dim_names=, as in "
            'init_device_mesh("cuda", (8, 4), mesh_dim_names=("data", "model"))'
        )
    return Mesh.of(mesh)
