"""`python -m tools.accuracy.rules`: what every rule of a compiler changes in plans.

Models are partitioned by hand. Each plan is priced as it is, and once more for each rule of the
device's compiler, as if the compiler did not follow it. The step is that which searches compare,
peaks include buffers that may be held longer. No compiler is needed.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import partita as pt
from partita import cost, models
from partita.cost import CostModel, Hardware
from partita.cost.compilers import Rule, compiler, compilers
from partita.models.strategies import schedule
from partita.planning.schedule import Scheduled
from tools.accuracy.cells import MODELS
from tools.accuracy.cells import SCHEDULES as WIDE
from tools.coverage import PRESETS

DEVICES = ("tpu_v5e", "tpu_v5p", "h100", "a100_80gb", "b200", "v100")
"""Device types that together have every rule; a rule is priced where it changes something."""

SCHEDULES = ("data-parallel", "fsdp", "tensor-parallel")

MEMORY = "1000TB"
"""Memory of a device, so that all plans fit and keep what they gather."""

WIDTH = 220
"""Columns of what is not printed to a terminal."""


@dataclasses.dataclass(frozen=True)
class Change:
    """Relative change of a plan's step and peak when a rule is switched off."""

    rule: Rule
    compiler: str
    plan: str
    time: float
    memory: float


def plans(model: str, device: str) -> Iterator[tuple[str, Scheduled]]:
    """Yields the plans by hand of a preset, or of a wide model of the accuracy table."""
    if model in MODELS:
        sized = MODELS[model]
        built = models.build(sized.preset, **sized.changes)
        wide = [name for name in WIDE if name != "automatic"]
        cases = [(name, WIDE[name].mesh(16), WIDE[name].tactics(sized.preset)) for name in wide]
    else:
        built = models.build(model)
        tiny = [(name, schedule(model, name)) for name in SCHEDULES]
        cases = [(name, each.mesh, list(each.tactics)) for name, each in tiny]
    for name, mesh, tactics in cases:
        plan = pt.plan(
            built.fn,
            *built.args,
            mesh=mesh,
            hardware=device,
            memory=MEMORY,
            tactics=tactics,
            donate_argnums=built.donate_argnums,
        )
        yield f"{model}, {name}, {device}", plan.done


def changes(done: Scheduled, plan: str) -> Iterator[Change]:
    """Yields what the rules of a plan's compiler change in it."""
    hardware = done.hardware
    time, memory = _priced(done, hardware)
    for rule in compiler(hardware.compiler).rules:
        without = rule.without(hardware)
        if without != hardware:
            other = _priced(done, without)
            relative = abs(other[0] / time - 1), abs(other[1] / memory - 1)
            yield Change(rule, hardware.compiler, plan, *relative)


def _priced(done: Scheduled, hardware: Hardware) -> tuple[float, float]:
    """Returns the seconds of the step that searches compare, and the most bytes at its peak."""
    context, lowering = done.stage.context, done.lowering
    model = CostModel(lowering.graph, context.analysis, context.mesh, hardware, done.stage.capacity)
    found = model.cost(lowering, choose=False)
    held = hardware.kernels.held_longer
    fixed = model.memory.arguments(found.kept) + model.memory.constants
    more = held.value * (found.peak - fixed) if held is not None else 0.0
    return found.time.expected_time(hardware.hidden_share.value), found.peak + more


def view(found: Sequence[Change]) -> Table:
    """Returns the table: each rule with the experiment that showed it and what it changes."""
    table = Table(box=None, pad_edge=False)
    table.add_column("compiler", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("what the compiler does", ratio=1)
    table.add_column("shown by", ratio=1)
    table.add_column("since", no_wrap=True)
    for column in ("time, median", "max", "memory, median", "max"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("on record without it", ratio=1)
    for each in compilers():
        for rule in each.rules:
            own = [c for c in found if c.rule is rule]
            figures = [
                f"{function(values):.1%}" if own else ""
                for values in ([c.time for c in own], [c.memory for c in own])
                for function in (statistics.median, max)
            ]
            cells = rule.name, rule.does, rule.shown_by, rule.since, *figures, rule.accuracy
            table.add_row(each.name, *cells)
    return table


def main(
    only: Annotated[
        str, typer.Option(help="Presets and wide models, with commas between; all by default.")
    ] = "",
    devices: Annotated[str, typer.Option(help="Device types, with commas.")] = ",".join(DEVICES),
) -> None:
    """Price plans without each rule of their compiler, and print how much that changes."""
    progress, found = Console(stderr=True), list[Change]()
    for model in only.split(",") if only else (*PRESETS, *MODELS):
        for device in devices.split(","):
            for plan, done in plans(model, cost.load(device).name):
                found += changes(done, plan)
        progress.print(model)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(view(found))


if __name__ == "__main__":
    typer.run(main)
