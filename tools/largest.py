"""The largest presets of the built-in models, on abstract arguments: how long importing and
analysing take, and planning a model of 175 billion parameters for 4,096 devices."""

from __future__ import annotations

import dataclasses
import multiprocessing
import resource
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import jax
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

import partita as pt
from partita import models
from partita.models import strategies
from partita.stablehlo.importer import import_stablehlo
from partita.text import seconds, size
from tools.bench import analysed, lowered_text, timed
from tools.sizes import parameters

LARGEST = (
    "gpt-175b",
    "mlp",
    "llama3-405b",
    "gemma-7b",
    "mixtral-8x22b",
    "vit-l16",
    "unet-ddpm",
    "gns",
    "decode-7b",
    "resnet50",
    "ssm-1b",
    "t5-3b",
    "gemma3-27b",
    "qwen3-235b-a22b",
    "gpt-oss-120b",
    "deepseek-v3",
    "whisper-large-v3",
    "vit-22b",
    "dit-xl2",
    "sdxl",
)
"""The largest preset of every family."""

POD = "gpt-175b"
"""The preset that is planned, too."""

MESH = jax.sharding.AbstractMesh((256, 16), ("data", "model"))
HARDWARE = "tpu_v5p"

SCHEDULES = ("data-parallel + tensor-parallel + fsdp", "automatic")


@dataclasses.dataclass
class Row:
    """What was measured in a process of its own."""

    model: str
    peak_rss: int = dataclasses.field(default=0, kw_only=True)
    """Of the process, in bytes."""
    reason: str = dataclasses.field(default="", kw_only=True)
    """Why it failed, if it did."""


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclasses.dataclass
class Size(Row):
    """A preset: how large its program is, and how long reading it takes."""

    parameters: int = 0
    operations: int = 0
    jax_seconds: float = 0.0
    """In which JAX traces and lowers."""
    import_seconds: float = 0.0
    analysis_seconds: float = 0.0


@dataclasses.dataclass
class PodPlan(Row):
    """A plan of `POD` over `MESH`."""

    schedule: str
    seconds: float = 0.0
    """Of planning, tracing and all."""
    step_time: float = 0.0
    peak_memory: int = 0
    fits: bool = False
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Sizes:
    """All that was measured."""

    models: list[Size]
    plans: list[PodPlan]

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and all plans fit."""
        return not self._failed

    @property
    def _failed(self) -> list[Row]:
        rows: list[Row] = [*self.models, *self.plans]
        return [row for row in rows if row.reason]

    def data(self) -> dict[str, Any]:
        """All of it, for JSON. Times in seconds, sizes in bytes."""
        return {"passed": self.passed, "mesh": dict(MESH.shape), **dataclasses.asdict(self)}

    def view(self) -> RenderableType:
        """Two tables, and a line for every row that failed."""
        sizes = _table("model", "parameters", "operations", "JAX", "import", "analyse", "peak RSS")
        for row in self.models:
            sizes.add_row(
                row.model,
                f"{row.parameters / 1e9:.3g} B",
                f"{row.operations:,}",
                *map(seconds, (row.jax_seconds, row.import_seconds, row.analysis_seconds)),
                size(row.peak_rss),
            )
        parts: list[RenderableType] = [sizes]
        if self.plans:
            mesh = pt.Mesh.of(MESH)
            plans = _table("schedule", "plan", "step", "peak memory", "collectives", "peak RSS")
            plans.title = f"{POD} on {mesh} ({mesh.devices} x {HARDWARE})"
            plans.title_justify = "left"
            for plan in self.plans:
                plans.add_row(
                    plan.schedule,
                    *map(seconds, (plan.seconds, plan.step_time)),
                    size(plan.peak_memory),
                    ", ".join(f"{count} {kind}" for kind, count in plan.collectives.items()),
                    size(plan.peak_rss),
                )
            parts += [Text(), plans]
        parts += [Text(f"FAILED {r.model}: {r.reason}", style="red") for r in self._failed]
        return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def measure(presets: Sequence[str] | None, console: Console) -> Sizes:
    """Measures presets, by default those of `LARGEST`, each in a process of its own.

    Args:
      presets: which; `POD` among them is planned, too.
      console: shows on a terminal what is being done.
    """
    chosen = presets or LARGEST
    sizes = [_alone(measure_size, Size(preset), console) for preset in chosen]
    plans = [
        _alone(measure_plan, PodPlan(POD, name), console) for name in SCHEDULES if POD in chosen
    ]
    return Sizes(sizes, plans)


def _alone(work: Callable[[AnyRow], AnyRow], row: AnyRow, console: Console) -> AnyRow:
    """Fills a row in a fresh process, so that its memory is that of this row only."""
    fresh = multiprocessing.get_context("spawn")
    with (
        console.status(f"{row.model} {getattr(row, 'schedule', '')}"),
        ProcessPoolExecutor(1, mp_context=fresh) as pool,
    ):
        try:
            return pool.submit(work, row).result()
        except Exception as error:
            message = " ".join(str(error).split())[:300]
            return dataclasses.replace(row, reason=f"{type(error).__name__}: {message}")


def measure_size(row: Size) -> Size:
    """Traces, imports and analyses a preset."""
    model = models.build(row.model)
    row.parameters = parameters(model)
    text, row.jax_seconds = timed(lambda: lowered_text(model))
    program, row.import_seconds = timed(lambda: import_stablehlo(text))
    _, row.analysis_seconds = timed(lambda: analysed(program))
    row.operations = len(program.operations)
    row.peak_rss = _peak_rss()
    return row


def measure_plan(row: PodPlan) -> PodPlan:
    """Plans `POD` over `MESH`."""
    model = models.build(row.model)
    tactics: list[pt.Tactic] = [pt.AutomaticPartition()]
    if row.schedule != "automatic":
        tactics = [
            strategies.data_parallel(),
            *strategies.tensor_parallel(row.model),
            strategies.fsdp(),
        ]
    plan, row.seconds = timed(
        lambda: pt.plan(
            model.fn,
            *model.args,
            mesh=MESH,
            hardware=HARDWARE,
            tactics=tactics,
            donate_argnums=model.donate_argnums,
        )
    )
    row.step_time = plan.estimate.step_time
    row.peak_memory = plan.estimate.peak_memory
    row.fits = plan.estimate.fits
    row.collectives = dict(Counter(c.kind for c in plan.collectives))
    row.peak_rss = _peak_rss()
    idle = [entry.name for entry in plan.history if not entry.tiled]
    if idle:
        row.reason = f"{idle[0]} splits nothing"
    elif not row.fits:
        row.reason = f"needs {size(row.peak_memory)} of {size(plan.estimate.capacity)}"
    return row


def _peak_rss() -> int:
    """The most memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
