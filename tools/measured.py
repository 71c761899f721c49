"""`python -m tools.measured`: models run on one device at hand, beside what is predicted for it.

No plans are compared here, only how long kernels are predicted to take. Nothing is donated, so that
a step can be run again and again on the same arguments.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

import partita
from partita import models as presets
from partita.errors import ModelError, closest
from tools.accuracy.cells import MODELS, Sized

WARM, RUNS, SERIES = 3, 5, 5
"""Steps before anything is timed, steps of a series, and series of which the median counts."""

MESH = "data=1"


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds of a step of a model on one device."""

    model: str
    hardware: str
    predicted: float
    seconds: float


def measure(name: str, sized: Sized, hardware: str) -> Measured:
    """Predicts a model, and runs it on the first device of this process."""
    model = presets.build(sized.preset, **sized.changes)
    predicted = partita.plan(model.fn, *model.args, mesh=MESH, tactics=[], hardware=hardware)
    if model.example is None:
        raise ModelError(f"{name} has no example arguments")
    args = jax.device_put(model.example(0), jax.devices()[0])
    compiled = jax.jit(model.fn, keep_unused=True).lower(*args).compile()
    return Measured(name, hardware, predicted.estimate.step_time, step_seconds(compiled, args))


def step_seconds(step: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Seconds of a step when one follows the other: the median over series of them."""
    for _ in range(WARM):
        jax.block_until_ready(step(*args))
    series = []
    for _ in range(SERIES):
        start = time.perf_counter()
        for _ in range(RUNS):
            out = step(*args)
        jax.block_until_ready(out)
        series.append((time.perf_counter() - start) / RUNS)
    return statistics.median(series)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL...", help=f"Some of {', '.join(MODELS)}; all by default."),
    ] = None,
    hardware: Annotated[str, typer.Option(help="What the device is predicted as.")] = "h200",
    results: Annotated[
        Path | None, typer.Option(help="Add each result to this file, as a line of JSON.")
    ] = None,
) -> None:
    """Run models on one device, and print what was predicted beside what was measured."""
    for name in models or ():
        if name not in MODELS:
            raise typer.BadParameter(f"there is no {name!r}{closest(name, MODELS)}")
    table = Table(title=f"one {jax.devices()[0].device_kind}, jax {jax.__version__}", box=None)
    for column in ("model", "predicted", "measured", "ratio"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in models or MODELS:
        found = measure(name, MODELS[name], hardware)
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(found)) + "\n")
        table.add_row(
            name,
            f"{found.predicted * 1e3:.4g} ms",
            f"{found.seconds * 1e3:.4g} ms",
            f"{found.predicted / found.seconds:.2f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    app()
