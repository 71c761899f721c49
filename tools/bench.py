"""`make bench`: how long the stages take on a 24-layer GPT train step, and how that grows."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

import partita
from partita import cost, models
from partita.analysis import Analysis, analyse, fold
from partita.cost import Cost, CostModel
from partita.cost.kernels.fusion import analyse_fusion
from partita.decisions import Context, Stage
from partita.garbage import paused
from partita.mesh import Mesh
from partita.models.strategies import data_parallel, fsdp, tensor_parallel
from partita.planning.schedule import run_schedule
from partita.program import Program
from partita.search import BUDGET, Problem, iterated_search
from partita.spmd import Lowering
from partita.stablehlo.importer import import_stablehlo
from partita.tactics import AutomaticPartition
from partita.tactics.starts import starts
from partita.tiling import replicated, untiled

MESH = Mesh.of("data=4,model=8")
HARDWARE = "tpu_v5e"

LARGE_LAYERS = 200
"""Unrolled, they make a program of more than 100,000 operations."""


def main() -> None:
    """Prints each figure beside its target."""
    table = Table(title="gpt-24l on data=4,model=8, tpu_v5e", title_justify="left", box=None)
    for column in ("what", "measured", "target"):
        table.add_column(column, justify="left" if column == "what" else "right")
    text = lowered_text(models.build("gpt-24l"))
    analysis, importing = timed(lambda: read(text))
    operations = len(analysis.program.operations)
    table.add_row(f"import + analysis of {operations} operations", f"{importing:.2f} s", "2 s")
    costing, reaching = price_states(analysis, 1000)
    table.add_row("costing a search state, median", f"{costing * 1e3:.2f} ms", "0.1 ms")
    table.add_row("  and tiling it before", f"{reaching * 1e3:.2f} ms", "")
    pricing = searched_states(analysis)
    table.add_row(
        "  of the default search, median", f"{statistics.median(pricing) * 1e3:.3f} ms", "0.1 ms"
    )
    table.add_row("  mean", f"{statistics.mean(pricing) * 1e3:.3f} ms", "")
    searching = search_seconds(analysis)
    table.add_row("default search", f"{searching:.1f} s", "10 s")
    table.add_row("one manual tactic, slowest", f"{tactic_seconds(analysis):.2f} s", "0.3 s")
    few, many = (
        search_seconds(analyse(import_stablehlo(lowered_text(m)), regather_window()))
        for m in (models.build("gpt-24l", layers=layers) for layers in (12, 48))
    )
    table.add_row("search of 48 layers over 12", f"{many / few:.2f} x", "1.5 x")
    table.add_row("  12 layers, 48 layers", f"{few:.1f} s, {many:.1f} s", "")
    text = lowered_text(models.build("gpt-24l", layers=LARGE_LAYERS))
    analysis, importing = timed(lambda: read(text))
    operations = len(analysis.program.operations)
    table.add_row(f"import + analysis of {operations} operations", f"{importing:.1f} s", "20 s")
    one, two = (call_overhead(arrays=200, signatures=n) for n in (1, 2))
    table.add_row(
        "a call of jit with 200 arrays, more than jax.jit's", f"{one * 1e6:.0f} us", "50 us"
    )
    table.add_row("  where it is called with two shapes", f"{two * 1e6:.0f} us", "")
    Console().print(table)


def call_overhead(arrays: int, signatures: int) -> float:
    """Seconds that a call of `partita.jit` takes longer than one of `jax.jit`.

    Args:
      arrays: how many it takes.
      signatures: with how many shapes it is called, in turn.
    """

    def step(params: dict[str, Any]) -> Any:
        return {name: 2 * value for name, value in params.items()}

    names = [f"layer_{n}" for n in range(arrays)]
    device = jax.devices()[0]
    calls = [
        {name: jax.device_put(np.ones((2, 2 + n), np.float32), device) for name in names}
        for n in range(signatures)
    ]
    mesh = jax.sharding.Mesh(np.array([device]), ("data",))
    calls = [jax.device_put(args, NamedSharding(mesh, PartitionSpec())) for args in calls]
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    functions = {
        "ours": partita.jit(step, mesh=mesh, hardware="cpu", tactics=[]),
        "theirs": jax.jit(step),
    }
    for _ in range(200):
        for name, function in functions.items():
            start = time.perf_counter()
            for args in calls:
                jax.block_until_ready(function(args))
            seconds[name].append((time.perf_counter() - start) / signatures)
    ours, theirs = (statistics.median(each) for each in seconds.values())
    return ours - theirs


def lowered_text(model: models.Model) -> str:
    """The step of a model, as JAX lowers it."""
    jitted = jax.jit(model.fn, keep_unused=True, donate_argnums=model.donate_argnums)
    lowered = jitted.trace(*model.args).lower()
    text: str = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    return text


def read(text: str) -> Analysis:
    """Everything that is found once for a program: names, colors, classes, kernels."""
    return analysed(import_stablehlo(text))


def analysed(program: Program) -> Analysis:
    """What is found once for an imported program."""
    analysis = analyse(program, regather_window())
    fold(analysis)
    analyse_fusion(program, analysis.uses)
    return analysis


def regather_window() -> int:
    """How far uses are apart that copies are gathered for anew."""
    return int(cost.load(HARDWARE).regather_window.value)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and the seconds it took."""
    gc.collect()
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def price_states(analysis: Analysis, count: int) -> tuple[float, float]:
    """Median seconds to lower and price one of `count` new states of random playouts, and to
    reach it by tiling as well."""
    graph = fold(analysis)
    model = CostModel(graph, analysis, MESH, cost.load(HARDWARE))
    problem = Problem(analysis, graph, untiled(graph), MESH, model, range(len(MESH.names)))
    rng = random.Random(0)
    pricing: list[float] = []
    reaching: list[float] = []
    gc.collect()
    gc.disable()
    while len(pricing) < count:
        state = problem.start
        for _ in range(6):
            move = rng.choice(problem.moves)
            before = problem.evaluations
            start = time.perf_counter()
            problem.tiled(state, move)
            tiled = time.perf_counter() - start
            start = time.perf_counter()
            following = problem.step(state, move)
            if problem.evaluations > before:
                pricing.append(time.perf_counter() - start)
                reaching.append(pricing[-1] + tiled)
            state = following or state
    gc.enable()
    return statistics.median(pricing), statistics.median(reaching)


def searched_states(analysis: Analysis) -> list[float]:
    """Seconds to lower and price each state of the default search."""
    stage = Stage(context(analysis), replicated(analysis.program))
    axes, seconds = range(len(MESH.names)), list[float]()
    model = stage.cost_model
    problem = Problem(analysis, *stage.folded, MESH, model, axes, None, starts(stage, axes))
    lower, price = problem.lowerer.lower, model.cost
    started = 0.0

    def lowered(*args: Any) -> Lowering:
        nonlocal started
        started = time.perf_counter()
        return lower(*args)

    def priced(*args: Any) -> Cost:
        found = price(*args)
        seconds.append(time.perf_counter() - started)
        return found

    with (
        mock.patch.object(problem.lowerer, "lower", lowered),
        mock.patch.object(model, "cost", priced),
        paused(),
    ):
        iterated_search(problem, BUDGET, 0, lambda done, best: None)
    return seconds


def tactic_seconds(analysis: Analysis) -> float:
    """Seconds to apply and report the slowest of an expert's tactics, the best of three each."""
    done = run_schedule(context(analysis), [])
    slowest = 0.0
    for tactic in (data_parallel(), *tensor_parallel("gpt-24l"), fsdp()):
        tries = [timed(partial(done.then, tactic)) for _ in range(3)]
        slowest = max(slowest, min(seconds for _, seconds in tries))
        done = tries[0][0]
    return slowest


def context(analysis: Analysis) -> Context:
    """What tactics of an analysed program start from."""
    hardware = cost.load(HARDWARE)
    return Context(analysis, MESH, hardware, hardware.usable_memory)


def search_seconds(analysis: Analysis) -> float:
    """Seconds of the default search on an analysed program, the best of three."""
    stage = Stage(context(analysis), replicated(analysis.program))
    # Classes and kernels are read off the program, and timed with the import.
    _ = stage.folded, stage.context.timing
    # The best of three: machines that share their cores are noisy, and only ever slower.
    return min(timed(lambda: AutomaticPartition().apply(stage))[1] for _ in range(3))


if __name__ == "__main__":
    main()
