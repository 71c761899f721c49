"""`python -m tools.ready_made`: the default search beside what experts write, for every family.

Each family at a published size, on 8, 32 and 256 devices of several types. By hand are the
ready-made tactics and their usual combinations, on both assignments of the axes, and for families
that are no transformers what is split of them by name. Only plans that fit count, for both.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

import partita as pt
from partita.cost import CostModel
from partita.decisions import Context, Stage
from partita.errors import PartitaError
from partita.models.strategies import BATCH, tensor_parallel
from partita.search import BUDGET, Problem
from partita.search.starts import best_starts
from partita.spmd import Lowerer
from partita.tactics import AutomaticPartition, Tactic
from partita.text import seconds
from tools.methods.cases import MODELS, Case, Problems

PUBLISHED = (
    "mlp",
    "gpt-24l",
    "llama3-8b",
    "gemma-7b",
    "mixtral-8x7b",
    "vit-l16",
    "unet-ddpm",
    "gns",
    "decode-7b",
    "resnet50",
    "ssm-1b",
    "t5-3b",
)
"""Of every family a preset of a published size (`mlp` has none), and the one that decodes."""

SIZES = {"mlp": MODELS["mlp"]}
"""There is no published size of an MLP."""

MESHES = {8: "data=4,model=2", 32: "data=8,model=4", 256: "data=16,model=16"}
"""By number of devices."""

HARDWARE = ("tpu_v5e", "tpu_v5p", "a100_80gb", "h100")

NOISE = 1e-3
"""Difference that the cost model cannot tell from none."""

WORDS = 6
"""Decisions that are shown of a plan."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One model on one mesh: seconds of a step; infinite if nothing fits."""

    model: str
    mesh: str
    hardware: str
    budget: int
    """Of the search; 0 if only what it starts from was looked at."""
    by_hand: str
    """The best strategy."""
    hand_time: float
    found_time: float
    plans: int
    words: tuple[str, ...]
    """What the search decided."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for rows of the same."""
        return self.model, self.mesh, self.hardware, self.budget

    @property
    def difference(self) -> float:
        """By which share the search's plan takes longer; negative if it is quicker."""
        if self.found_time == self.hand_time:
            return 0.0
        return self.found_time / self.hand_time - 1


def strategies(preset: str, axes: Sequence[str] = ("data", "model")) -> dict[str, list[Tactic]]:
    """What experts write on two axes: by name, tactics."""
    data, model = axes
    batch: tuple[Tactic, ...] = (pt.DataParallel(data, BATCH),)
    both = (*batch, pt.DataParallel(model, BATCH))
    state, rest = pt.ZeRO(3, data), pt.ZeRO(3, model)
    widths = tensor_parallel(preset, model)
    sequence = pt.SequenceParallel(model)
    found: dict[str, Sequence[Tactic]] = {
        "data parallel": both,
        "FSDP over both axes": (*both, state, rest),
        f"FSDP over {data}": (*both, state),
        "optimizer state sharded": (*both, pt.ZeRO(1, data)),
        "tensor parallel": (*batch, *widths),
        "tensor parallel, FSDP": (*batch, *widths, state),
        "tensor parallel, optimizer state sharded": (*batch, *widths, pt.ZeRO(1, data)),
        "tensor parallel, FSDP over both axes": (*batch, *widths, state, rest),
        "sequence parallel": (*batch, sequence),
        "sequence parallel, FSDP": (*batch, sequence, state),
    }
    return {name: list(tactics) for name, tactics in found.items()}


def applied(stage: Stage, tactics: Sequence[Tactic]) -> Stage:
    """The stage behind tactics, without reports on them.

    Raises:
      PartitaError: one of them finds nothing that it could shard.
    """
    for tactic in tactics:
        stage = stage.after(tactic.apply(stage))
    return stage


def step_time(stage: Stage, context: Context) -> float:
    """What a search counts on, in a context; infinite for what does not fit."""
    (graph, tiling), hardware = stage.folded, context.hardware
    model = CostModel(
        graph, context.analysis, context.mesh, hardware, context.capacity, context.timing
    )
    lowering = Lowerer(graph, context.mesh, int(hardware.latency_bytes.value)).lower(tiling)
    _, estimate = model.settle(lowering)
    share = hardware.hidden_share.value
    return estimate.expected_time(share) if estimate.fits else float("inf")


class Strategies:
    """Where strategies lead, which no device type changes: once for each model and mesh."""

    def __init__(self) -> None:
        self._applied: dict[tuple[object, ...], list[tuple[str, Stage]]] = {}

    def times(self, stage: Stage, preset: str) -> Iterator[tuple[float, str]]:
        """The step time of every strategy, with its name."""
        context = stage.context
        key = preset, context.mesh, id(context.analysis)
        if key not in self._applied:
            self._applied[key] = list(_applied(stage, preset))
        for name, after in self._applied[key]:
            yield step_time(after, context), name


def _applied(stage: Stage, preset: str) -> Iterator[tuple[str, Stage]]:
    for axes in (("data", "model"), ("model", "data")):
        for name, tactics in strategies(preset, axes).items():
            try:
                yield f"{name} ({axes[0]}, {axes[1]})", applied(stage, tactics)
            except PartitaError:  # the program has no such part
                continue


def compared(
    problems: Problems, case: Case, budget: int, strategies: Strategies | None = None
) -> Row:
    """A search beside all strategies; with a budget of 0 only what it starts from."""
    stage = problems.stage(case)
    times = (strategies or Strategies()).times(stage, case.model)
    hand, name = min(times, default=(float("inf"), "nothing"))
    if budget:
        outcome = AutomaticPartition(budget=budget).apply(stage)
        after = stage.after(outcome)
        found, words, plans = step_time(after, stage.context), outcome.decisions, budget
    else:
        problem = problems.of(case)
        found, words, plans = _best_start(problem), (), problem.evaluations
    fits = hand < float("inf")
    return Row(
        case.model, case.mesh, case.hardware, budget, name if fits else "nothing fits", hand, found,
        plans, tuple(words),
    )  # fmt: skip


def _best_start(problem: Problem) -> float:
    best = best_starts(problem, 1, 10**6)[0]
    fits = best.cost.peak <= problem.cost_model.capacity
    return problem.time(best) if fits else float("inf")


def markdown(rows: Sequence[Row]) -> str:
    """A table, and in the end how often the search is better, alike and worse."""
    lines = [
        "| model | mesh | device | best by hand | | searched | difference | decides |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [
            row.model, row.mesh, row.hardware, row.by_hand, _seconds(row.hand_time),
            _seconds(row.found_time), f"{100 * row.difference:+.1f} %",
            "; ".join(row.words[:WORDS]),
        ]  # fmt: skip
        lines.append("| " + " | ".join(shown) + " |")
    better = sum(row.difference < -NOISE for row in rows)
    worse = sum(row.difference > NOISE for row in rows)
    lines.append("")
    lines.append(f"{len(rows)} cells: better in {better}, worse in {worse}.")
    return "\n".join(lines)


def _seconds(time: float) -> str:
    return "does not fit" if time == float("inf") else seconds(time)


def load(path: Path) -> list[Row]:
    """The rows in a file; none if there is no file."""
    if not path.exists():
        return []
    every = map(json.loads, path.read_text("utf-8").splitlines())
    return [Row(**{**fields, "words": tuple(fields["words"])}) for fields in every]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="Presets; one of each family.")
    ] = None,
    devices: Annotated[list[int] | None, typer.Option(help="8, 32 or 256; repeatable.")] = None,
    hardware: Annotated[list[str] | None, typer.Option(help="Device types; repeatable.")] = None,
    budget: Annotated[
        int, typer.Option(help="Plans that the search estimates; 0: only what it starts from.")
    ] = BUDGET,
    results: Annotated[
        Path, typer.Option(help="File that rows are kept in; what it has is not done again.")
    ] = Path("ready_made.jsonl"),
    only_show: Annotated[bool, typer.Option("--show", help="Run nothing, only show.")] = False,
) -> None:
    """Compare the search with strategies by hand; the exit status is 1 if one of them is better."""
    rows = {row.key: row for row in load(results)}
    problems, known = Problems(SIZES), Strategies()
    wanted = itertools.product(models or PUBLISHED, devices or MESHES, hardware or HARDWARE)
    cases = [Case(model, MESHES[count], kind) for model, count, kind in wanted]
    for case in () if only_show else cases:
        if (case.model, case.mesh, case.hardware, budget) not in rows:
            row = compared(problems, case, budget, known)
            rows[row.key] = row
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(row)) + "\n")
    keys = [(case.model, case.mesh, case.hardware, budget) for case in cases]
    shown = [rows[key] for key in keys if key in rows]
    print(markdown(shown))
    if any(row.difference > NOISE for row in shown):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
