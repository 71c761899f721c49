"""`partita plan` and `partita show`: a plan that is made, or one that was saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

import partita as pt
from partita.cli import output
from partita.cli.compare import hand_out
from partita.cli.confirm import Confirming
from partita.cli.options import (
    HARDWARE,
    HtmlOption,
    JsonOption,
    MemoryOption,
    Model,
    PlanFile,
)
from partita.cli.planned import Planning, loaded
from partita.cli.sweep import SWEPT, number, swept, tactics_of
from partita.cli.sweep import sweep as sweep_of
from partita.frontend.files import format_of
from partita.planning.strict import Strict, kinds
from partita.report.collect import summary
from partita.report.compare import ComparisonData
from partita.report.plan import view
from partita.report.write import ending
from partita.run.executable import Form


@dataclasses.dataclass(frozen=True)
class Asked(Planning):
    """The options that say what to plan, unless a plan file says it."""

    hardware: Annotated[str | None, HARDWARE] = None


@dataclasses.dataclass(frozen=True)
class Output:
    """The options that say how to hand a plan out."""

    partitioned: Annotated[
        Path | None,
        typer.Option(
            help="Write the program that the plan runs, collectives and all: .mlir is text, "
            ".mlirbc bytecode, .bin a serialized jax.export.Exported.",
        ),
    ] = None
    annotated: Annotated[
        Path | None,
        typer.Option(
            help="Write the original program with shardings on its values, for a compiler that "
            "partitions by itself. Endings as above.",
        ),
    ] = None
    html: HtmlOption = None
    as_json: JsonOption = False

    def check(self) -> None:
        """Complains of the names of files before the work, not after it."""
        for path in self.programs.values():
            format_of(path)
        if self.html is not None:
            ending(self.html)

    @property
    def programs(self) -> dict[Form, Path]:
        """The files to write a program to."""
        asked: dict[Form, Path | None] = {
            "partitioned": self.partitioned,
            "annotated": self.annotated,
        }
        return {form: path for form, path in asked.items() if path is not None}

    def hand_out(self, plan: pt.Plan, found: pt.Confirmation | None = None) -> None:
        """Writes and prints what was asked for, what a compiler has confirmed first."""
        if self.html is not None:
            verified = None if found is None else found.taken.verification
            plan.report(self.html, () if verified is None else verified)
        for form, path in self.programs.items():
            plan.export(path, form)
        if self.as_json:
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


def plan(
    asked: Asked,
    target: Annotated[
        str | None,
        typer.Option(
            help="With --frontend torch, what the plan is for: dtensor keeps it to what "
            "partita.torch can apply to the module.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the plan to this JSON file, for `partita show` and partita.load."),
    ] = None,
    strict: Annotated[
        str | None,
        typer.Option(
            help="Exit with status 1 for what the report only mentions: 'all', or some of "
            "refused, donation, constraints, replicated, idle and memory, comma-separated; "
            "replicated=64MiB says from which size on.",
        ),
    ] = None,
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
    *,
    confirming: Confirming,
    to: Output,
) -> None:
    """Plan a model's step over a mesh, and print what was decided and what it costs."""
    forbidden = _strictness(strict)
    to.check()
    confirming.check(asked.device_count)
    if sweep:
        if confirming.confirm is not None:
            raise pt.OptionError("--confirm is for one plan; leave --sweep out")
        compared, complete = _sweep(asked, sweep, target)
        hand_out(compared, f"{asked.model}: a sweep", to.html, to.as_json)
        raise typer.Exit(0 if complete else 1)
    made = asked.plan(target=target) if rebase is None else _rebased(rebase, asked)
    found = confirming.confirmed(made)
    if found is not None:
        made = found.plan
    if save is not None:
        made.save(save)
    to.hand_out(made, found)
    asked.check_manual(made)
    _check_strict(made, forbidden)
    if found is not None and not found.fits:
        raise typer.Exit(1)


def _rebased(file: Path, asked: Asked) -> pt.Plan:
    """What the tactics of a plan file decide for a model that may have changed since."""
    if asked.devices is not None or asked.manual or asked.axes is not None:
        raise pt.TacticError(
            "--rebase decides what the plan file says; leave --devices, --manual and --axes out"
        )
    target = {"mesh": asked.mesh, "hardware": asked.hardware, "memory": asked.memory}
    return loaded(file, asked.model, rebase=True, **target)


def _sweep(asked: Asked, options: list[str], target: str | None) -> tuple[ComparisonData, bool]:
    """The plans of a sweep, side by side, and whether all of them could be made."""
    values = swept(options)
    if {"mesh", "devices"} & values.keys():
        asked = dataclasses.replace(asked, mesh=None, devices=None)

    def make(tactics: str | None = None, **chosen: str) -> pt.Plan:
        numbers = {name: number(name, chosen[name]) for name in _NUMBERS if name in chosen}
        each = dataclasses.replace(asked, **{**chosen, **numbers})  # type: ignore[arg-type]
        own = None if tactics is None else tactics_of(tactics, each.automatic)
        return each.plan(own, target)

    return sweep_of(values, make)


_NUMBERS = ("budget", "seed", "devices")


def _strictness(text: str | None) -> Strict:
    """What `--strict` asks for, as `partita.plan` takes it; complains before the work."""
    if text is None or text == "all":
        return text is not None
    parts = (part.partition("=") for part in text.split(","))
    strict = {name: size if given else True for name, given, size in parts}
    kinds(strict)
    return strict


def _check_strict(plan: pt.Plan, strict: Strict) -> None:
    """Ends with exit code 1 if a plan has what `--strict` forbids, and says what."""
    found = plan.problems(strict)
    for problem in found:
        output.error(problem)
    if found:
        raise typer.Exit(1)


def show(
    plan: PlanFile,
    model: Model,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Cost on another device type, or a .toml file; that of the plan if none."
        ),
    ] = None,
    memory: MemoryOption = None,
    *,
    to: Output,
) -> None:
    """Print a saved plan, after checking that it is for this model. Nothing is searched."""
    to.check()
    to.hand_out(loaded(plan, model, hardware=hardware, memory=memory))
