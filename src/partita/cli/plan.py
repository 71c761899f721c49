"""`partita plan` and `partita show`: a plan that is made, or one that was saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

import partita as pt
from partita import models
from partita.cli import output
from partita.cli.compare import hand_out
from partita.cli.confirm import ConfirmOption, ConfirmTopologyOption, check, confirmed
from partita.cli.options import (
    HARDWARE,
    AnnotatedOption,
    AxesOption,
    BudgetOption,
    CompilerOption,
    DevicesOption,
    Frontend,
    FrontendOption,
    HoistOption,
    HtmlOption,
    JsonOption,
    LiftOption,
    ManualOption,
    MemoryOption,
    MeshOrDevicesOption,
    Model,
    PartitionedOption,
    SearchOption,
    SeedOption,
    StrictOption,
    TargetOption,
    WorkersOption,
)
from partita.cli.planned import (
    check_manual,
    check_mesh,
    check_strict,
    planned,
    rebased,
    schedule,
    strictness,
)
from partita.cli.sweep import SWEPT, number, swept, tactics_of
from partita.cli.sweep import sweep as sweep_of
from partita.frontend.files import format_of
from partita.report.compare import ComparisonData
from partita.report.json import summary
from partita.report.plan import view
from partita.report.write import ending
from partita.run.executable import Form
from partita.search import BUDGET


def plan(
    model: Model,
    hardware: Annotated[str | None, HARDWARE] = None,
    mesh: MeshOrDevicesOption = None,
    devices: DevicesOption = None,
    manual: ManualOption = None,
    axes: AxesOption = None,
    memory: MemoryOption = None,
    budget: BudgetOption = BUDGET,
    seed: SeedOption = 0,
    search: SearchOption = "iterated",
    workers: WorkersOption = 1,
    frontend: FrontendOption = Frontend.JAX,
    target: TargetOption = None,
    hoist_constants: HoistOption = False,
    lift_constants: LiftOption = False,
    partitioned: PartitionedOption = None,
    annotated: AnnotatedOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the plan to this JSON file, for `partita show` and partita.load."),
    ] = None,
    strict: StrictOption = None,
    rebase: Annotated[
        Path | None,
        typer.Option(
            help="Decide again what the tactics of this plan file decided, as far as it still "
            "fits, in place of --manual and a search; on its mesh and hardware, or those given."
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME='VALUE VALUE ...': a plan for each value of an option, side by side; of "
            f"{', '.join(SWEPT)}. Repeatable: every combination."
        ),
    ] = None,
    confirm: ConfirmOption = None,
    topology: ConfirmTopologyOption = None,
    compiler_option: CompilerOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a model's step over a mesh, and print what was decided and what it costs."""
    forbidden = strictness(strict)
    files = _files(partitioned, annotated, html)
    check(confirm, topology, compiler_option or [], mesh, devices)
    if sweep:
        if confirm is not None:
            raise pt.OptionError("--confirm is for one plan; leave --sweep out")
        given = dict(mesh=mesh, devices=devices, hardware=hardware, memory=memory, budget=budget)
        every = dict(manual=manual, axes=axes, seed=seed, search=search, workers=workers)
        hoist = hoist_constants or lift_constants
        compared, complete = _sweep(model, sweep, hoist, **given, **every)
        hand_out(compared, f"{model}: a sweep", html, as_json)
        raise typer.Exit(0 if complete else 1)
    if rebase is not None:
        if devices is not None or manual or axes is not None:
            raise pt.TacticError(
                "--rebase decides what the plan file says; leave --devices, --manual and --axes out"
            )
        made = rebased(rebase, model, mesh, hardware, memory)
    else:
        if hardware is None:
            raise pt.HardwareError("give --hardware, a device type such as tpu_v5e or a .toml file")
        check_mesh(mesh, devices)
        tactics = schedule(manual or [], axes, budget, seed, search, workers)
        hoist = hoist_constants or lift_constants
        made = planned(model, mesh, hardware, tactics, memory, hoist, devices, frontend, target)
    found = None
    if confirm is not None:
        found = confirmed(made, confirm, topology, compiler_option or [])
        made = found.plan
    if save is not None:
        made.save(save)
    _hand_out(made, files, html, as_json, found)
    check_manual(made, manual or [])
    check_strict(made, forbidden)
    if found is not None and not found.fits:
        raise typer.Exit(1)


def _sweep(
    model: str, options: list[str], hoist: bool, **given: Any
) -> tuple[ComparisonData, bool]:
    """The plans of a sweep, side by side, and whether all of them could be made."""
    values = swept(options)
    if {"mesh", "devices"} & values.keys():
        given |= {"mesh": None, "devices": None}

    def make(tactics: str | None = None, **chosen: str) -> pt.Plan:
        o = given | chosen
        budget, seed, devices = (number(name, o[name]) for name in ("budget", "seed", "devices"))
        assert budget is not None and seed is not None
        if o["hardware"] is None:
            raise pt.HardwareError("give --hardware, a device type such as tpu_v5e or a .toml file")
        check_mesh(o["mesh"], devices)
        own = schedule(o["manual"] or [], o["axes"], budget, seed, o["search"], o["workers"])
        if tactics is not None:
            own = tactics_of(tactics, lambda: _searching(o, budget, seed))
        return planned(model, o["mesh"], o["hardware"], own, o["memory"], hoist, devices)

    return sweep_of(values, make)


def _searching(o: dict[str, Any], budget: int, seed: int) -> pt.Tactic:
    """The search that a sweep's `tactics=search` stands for."""
    (found,) = schedule([], o["axes"], budget, seed, o["search"], o["workers"])
    return found


def show(
    plan: Annotated[Path, typer.Argument(help="A file that `partita plan --save` wrote.")],
    model: Model,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Cost on another device type, or a .toml file; that of the plan if none."
        ),
    ] = None,
    memory: MemoryOption = None,
    partitioned: PartitionedOption = None,
    annotated: AnnotatedOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a saved plan, after checking that it is for this model. Nothing is searched."""
    files = _files(partitioned, annotated, html)
    loaded = models.load(model)
    made = pt.load(plan, loaded.fn, *loaded.args, hardware=hardware, memory=memory)
    _hand_out(made, files, html, as_json)


def _files(
    partitioned: Path | None, annotated: Path | None, html: Path | None = None
) -> dict[Form, Path]:
    """The files to write a program to; complains before the work, not after it."""
    asked: dict[Form, Path | None] = {"partitioned": partitioned, "annotated": annotated}
    files = {form: path for form, path in asked.items() if path is not None}
    for path in files.values():
        format_of(path)
    if html is not None:
        ending(html)
    return files


def _hand_out(
    plan: pt.Plan,
    files: dict[Form, Path],
    html: Path | None,
    as_json: bool,
    found: pt.Confirmation | None = None,
) -> None:
    """Writes and prints what was asked for, what a compiler has confirmed first."""
    if html is not None:
        verified = None if found is None else found.taken.verification
        plan.report(html, () if verified is None else verified)
    for form, path in files.items():
        plan.export(path, form)
    if as_json:
        more: dict[str, Any] = {}
        if plan.not_kept:
            more["not_kept"] = [dataclasses.asdict(each) for each in plan.not_kept]
        if found is not None:
            more["confirmed"] = found.as_dict()
        output.show_json(summary(plan.done, plan.meshes) | more)
    else:
        confirmed = [] if found is None else [found.view()]
        output.show(*confirmed, view(plan.done, output.width(), plan.meshes))
    for each in plan.not_kept:
        output.note(f"not kept: {each}")
