"""`make coverage-models`: every family of built-in models under every kind of schedule.

Each cell is a plan of a tiny preset, in float32, that runs on eight host devices. It passes if
every tactic splits something, the collectives that XLA compiles are those predicted, and one step
gives the numbers of the unpartitioned step. With `--largest`, how long the largest presets take to
import and analyse, and to plan at the scale of a pod; nothing of that is run.
"""

from __future__ import annotations

import os

# What the user has set comes last and wins. Collectives do not depend on how well the rest is
# compiled, which takes most of the time.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import functools
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import partita as pt
from partita import models
from partita.analysis import analyse
from partita.cli import run
from partita.frontend.calling import Marked
from partita.frontend.trace import trace
from partita.models.strategies import SCHEDULES, schedule
from partita.search import BUDGET
from partita.verify import Comparison, compare
from tools import largest
from tools.compiling import compiled

PRESETS = (
    "gpt-tiny",
    "mlp",
    "llama-tiny",
    "llama-tiny-unrolled",
    "gemma-tiny",
    "moe-tiny",
    "vit-tiny",
    "unet-tiny",
    "gns-tiny",
    "decode-tiny",
    "decode-mq-tiny",
    "resnet-tiny",
    "ssm-tiny",
    "t5-tiny",
    "gemma2-tiny",
    "gemma3-tiny",
    "qwen3-tiny",
    "qwen3-moe-tiny",
    "gpt-oss-tiny",
    "deepseek-tiny",
    "whisper-test",
    "vit-22b-tiny",
    "dit-tiny",
    "sdxl-tiny",
)
"""One preset of every family, and more where a family has more than one form."""

STEPS = ("trace", "analyse", "plan", "compile", "collectives", "run", "numbers")
"""What a cell has to pass, in order. Planning traces and analyses once more."""

WIDTH = 140
"""Columns of what is not printed to a terminal."""

MEMORY = "100kB"
"""So little that a search has to split what it can, and that FSDP gathers again."""

# Sums are taken in another order. Moments of the optimizer (which are sums of gradients), losses
# and outputs may differ by a share of the largest element, and by rounding where all cancel. A
# step of Adam divides by the root of the second moment, so where a gradient is zero but for
# rounding a parameter moves by any part of the learning rate, 1e-3: single parameters may differ
# by half of that, which the moments do not hide. In a large array, one in a thousand may move by
# all of it, either way, and the others by a tenth.
RELATIVE = 5e-4
ROUNDING = 1e-6
PARAMETER = 5e-4
LARGE, MOST, OTHERS = 1000, 2e-3, 1e-4


class MismatchError(Exception):
    """What a plan does is not what was expected of it."""


@dataclasses.dataclass
class Cell:
    """A model under a schedule: how far it came, and what was seen on the way."""

    model: str
    schedule: str = ""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Of each step that was passed, by its name."""
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of predicted collectives of each kind."""
    difference: float | None = None
    """The largest between the numbers and those of the unpartitioned step, in tolerances."""
    failed: str = ""
    """The step that failed, one of `STEPS`."""
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times a step, unless an earlier one has failed; an error in it fails the cell."""
        start = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.failed, self.reason = name, _one_line(error)
            raise _StopError from error
        self.seconds[name] = time.perf_counter() - start


class _StopError(Exception):
    """Leaves a cell that has failed."""


class Subject:
    """A built-in model in float32, traced and analysed, with concrete arguments."""

    def __init__(self, preset: str) -> None:
        self.cell = Cell(preset)
        """What its cells begin with."""
        with suppress(_StopError):
            with self.cell.step("trace"):
                self.model = models.build(preset, dtype="float32")
                assert self.model.example_batch is not None
                self.state = random_state(self.model.args[0])
                self.batch = self.model.example_batch(0)
                traced = trace(
                    self.model.fn,
                    self.model.args,
                    {},
                    Marked.of(donate_argnums=self.model.donate_argnums),
                )
            with self.cell.step("analyse"):
                analyse(traced.program)

    @functools.cached_property
    def expected(self) -> Any:
        """What the unpartitioned step makes of the arguments."""
        return jax.device_get(
            compiled(jax.jit(self.model.fn), self.state, self.batch)(self.state, self.batch)
        )

    def check(self, name: str, budget: int = BUDGET) -> Cell:
        """Plans and runs the model under one of `SCHEDULES`; what goes wrong is in the cell.

        One step is compared: later, a near-tie in routing or max pooling may fall to the other
        side.

        Args:
          name: of the schedule.
          budget: of a search.
        """
        cell = dataclasses.replace(self.cell, schedule=name, seconds=dict(self.cell.seconds))
        if cell.passed:
            with suppress(_StopError):
                self._check(cell, budget)
        return cell

    def _check(self, cell: Cell, budget: int) -> None:
        with cell.step("plan"):
            wanted = schedule(cell.model, cell.schedule, budget)
            plan = pt.plan(
                self.model.fn,
                *self.model.args,
                mesh=wanted.mesh,
                hardware="tpu_v5e",
                memory=MEMORY,
                tactics=wanted.tactics,
                donate_argnums=self.model.donate_argnums,
            )
            cell.collectives = dict(Counter(c.kind for c in plan.collectives))
            for entry in plan.history:
                if not entry.tiled:
                    raise MismatchError(f"{entry.name} splits nothing")
        with cell.step("compile"):
            arguments = plan.shard(self.state, self.batch)
            program = compiled(plan.jit(), *arguments)
        with cell.step("collectives"):
            comparison = compare(plan.collectives, plan.mesh, program.as_text())
            if not comparison.equal:
                raise MismatchError(_unpredicted(comparison))
        with cell.step("run"):
            got = jax.device_get(program(*arguments))
        with cell.step("numbers"):
            differences = compare_numbers(self.expected, got)
            name, cell.difference = max(differences.items(), key=lambda item: item[1])
            if cell.difference > 1:
                raise MismatchError(f"{name} differs by {cell.difference:.3g} times the tolerance")


def random_state(state: Any) -> Any:
    """A train state of random parameters, moments zero; quicker than compiling `init`."""
    rng = np.random.default_rng(0)

    def fill(path: Any, leaf: Any) -> np.ndarray:
        moment = any(getattr(key, "name", "") in ("mu", "nu") for key in path)
        if moment or not np.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        scale = leaf.shape[-2] ** -0.5 if len(leaf.shape) > 1 else 1.0
        values: np.ndarray = (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)
        return values

    return jax.tree_util.tree_map_with_path(fill, state)


def compare_numbers(expected: Any, got: Any) -> dict[str, float]:
    """The largest difference of every array, by the name of the result, in tolerances.

    What is no number, or of another type, is infinitely different.
    """
    wanted, structure = jax.tree_util.tree_flatten_with_path(expected)
    nested: Any = jax.tree.structure(got)
    if nested != structure:
        raise MismatchError(f"results are nested differently: {nested}")
    found = {}
    for (path, a), b in zip(wanted, jax.tree.leaves(got), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        alike = (a.shape, a.dtype) == (b.shape, b.dtype)
        ratio = _ratio(path, a, b) if alike else np.inf
        found[jax.tree_util.keystr(path)] = float(ratio)
    return found


def _ratio(path: Any, a: np.ndarray, b: np.ndarray) -> float:
    """How far two arrays are apart, in tolerances."""
    if not _is_parameter(path) or a.size < LARGE:
        return _difference(a, b) / _tolerance(path, a)
    apart = np.sort(np.abs(a.astype(np.float64) - b.astype(np.float64)), axis=None)[::-1]
    return (
        _difference(a, b) / MOST
        if np.isnan(apart).any()
        else float(max(apart[0] / MOST, apart[a.size // LARGE] / OTHERS))
    )


def _is_parameter(path: Any) -> bool:
    return getattr(path[1] if len(path) > 1 else None, "key", "") == "params"


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    largest = np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0)
    return np.inf if np.isnan(largest) else float(largest)


def _tolerance(path: Any, wanted: np.ndarray) -> float:
    if _is_parameter(path):
        return PARAMETER
    return RELATIVE * float(np.max(np.abs(wanted), initial=0.0)) + ROUNDING


def _unpredicted(comparison: Comparison) -> str:
    wrong = [row for row in comparison.rows() if row[1] != row[2]]
    collective, predicted, compiled = wrong[0]
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"{collective.kind} of {collective.bytes} bytes: {predicted} predicted, {compiled} compiled"
        f"{more}"
    )


def _one_line(error: Exception) -> str:
    kind = "" if isinstance(error, MismatchError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"[:300]


def cover(presets: Sequence[str], names: Sequence[str], console: Console) -> Iterator[Cell]:
    """Every cell of the matrix, as it comes; the console shows on a terminal where it is."""
    with console.status("") as status:
        for preset in presets:
            status.update(f"{preset}: tracing")
            subject = Subject(preset)
            for name in names:
                status.update(f"{preset}: {name}")
                yield subject.check(name)


def view(cells: Sequence[Cell]) -> Table:
    """The matrix as a table."""
    kinds = sorted({kind for cell in cells for kind in cell.collectives})
    table = Table(title="Times in seconds", title_justify="left", box=None, pad_edge=False)
    for column in ("model", "schedule"):
        table.add_column(column, no_wrap=True)
    for column in (*STEPS, *(kind.replace("_", "\n") for kind in kinds)):
        table.add_column(column, justify="right")
    model = ""
    for cell in cells:
        # Traced and analysed once for all schedules.
        first, model = cell.model != model, cell.model
        table.add_row(
            cell.model if first else "",
            cell.schedule,
            *(_step(cell, step) if first or step not in STEPS[:2] else "" for step in STEPS),
            *(str(cell.collectives.get(kind, "")) for kind in kinds),
        )
    return table


def _step(cell: Cell, step: str) -> Text:
    if step == cell.failed:
        return Text("FAILED", style="bold red")
    if step not in cell.seconds:
        return Text("-")
    if step in ("collectives", "numbers"):
        return Text("ok", style="green")
    return Text(f"{cell.seconds[step]:.2f}")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    presets: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="Presets; all by default.")
    ] = None,
    schedules: Annotated[
        list[str] | None,
        typer.Option("--schedule", help=f"One of {', '.join(SCHEDULES)}; repeatable."),
    ] = None,
    at_scale: Annotated[
        bool, typer.Option("--largest", help="Import and plan the largest presets, run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Run the built-in models under every schedule; the exit status is 1 if a cell fails."""
    for name in presets or ():
        models.family(name)  # says what is wrong before anything runs
    for name in schedules or ():
        schedule("mlp", name)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH  # nothing to fit into
    if at_scale:
        sizes = largest.measure(presets, Console(stderr=True))
        print(json.dumps(sizes.data(), indent=2)) if as_json else console.print(sizes.view())
        raise typer.Exit(0 if sizes.passed else 1)
    cells = list(cover(presets or PRESETS, schedules or SCHEDULES, Console(stderr=True)))
    failed = [cell for cell in cells if not cell.passed]
    if as_json:
        print(
            json.dumps(
                {"passed": not failed, "cells": list(map(dataclasses.asdict, cells))}, indent=2
            )
        )
    else:
        console.print(view(cells), "")
        for cell in failed:
            line = f"FAILED {cell.model}, {cell.schedule}, {cell.failed}: {cell.reason}"
            console.print(Text(line, style="red"), soft_wrap=True)
        console.print(f"{len(cells) - len(failed)} of {len(cells)} cells pass")
    raise typer.Exit(1 if failed else 0)


def main() -> None:
    """Entry point."""
    run(app)


if __name__ == "__main__":
    main()
