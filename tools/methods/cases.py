"""What methods are compared on: small models of real widths, meshes and device types, as data."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from partita import cost, models
from partita.analysis import analyse
from partita.decisions import Context, Stage
from partita.mesh import Mesh
from partita.planning.prepare import rewritten
from partita.program import Program
from partita.search import BUDGET, Move, Problem, iterated_search
from partita.search.starts import plain_starts
from partita.stablehlo.importer import import_stablehlo
from partita.tactics.starts import starts
from partita.text import parse_size
from partita.tiling import replicated
from tools.bench import lowered_text


@dataclasses.dataclass(frozen=True)
class Sized:
    """A preset of a built-in model, and what is changed of it."""

    preset: str
    changes: Mapping[str, Any]


_GPT = {"batch": 64, "sequence": 1024, "vocabulary": 32768}

MODELS: dict[str, Sized] = {
    "mlp": Sized(
        "mlp", {"batch": 16384, "sizes": (4096, 16384, 4096, 16384, 4096), "dtype": "bfloat16"}
    ),
    "gpt-1l": Sized("gpt-24l", {"layers": 1, **_GPT}),
    "gpt-2l": Sized("gpt-24l", {"layers": 2, **_GPT}),
    "decode": Sized("decode-7b", {"layers": 2, "new": 64}),
    "moe": Sized(
        "mixtral-8x7b",
        {
            "layers": 2,
            "batch": 32,
            "sequence": 1024,
            "embed": 2048,
            "kv_heads": 16,
            "group": 1,
            "experts": 16,
            "ffn": 2048,
        },
    ),
    "gns": Sized("gns", {"steps": 1, "nodes": 16384, "edges": 262144, "hidden_layers": 2}),
    "unet": Sized(
        "unet-ddpm",
        {"image": 64, "multipliers": (1, 2), "blocks": 1, "attention": (32,), "heads": 16},
    ),
}

LARGER = {
    "llama-7b": Sized(
        "llama3-8b",
        {"sequence": 4096, "kv_heads": 32, "group": 1, "ffn": 11008, "vocabulary": 32000},
    )
}
"""Models that are not among those that are compared by default."""

MESHES = {
    "2x2": "data=2,model=2",
    "4x2": "data=4,model=2",
    "2x2x2": "x=2,y=2,z=2",
    "4x8": "data=4,model=8",
    "4x4x2": "x=4,y=4,z=2",
}

FREE, TIGHT, LEAST = "all", "tight", "least"
"""Memory: all that the device type has, little more than the least that a start takes, or, with a
factor behind it as in `least*1.02`, that many times the least that any plan of a search takes."""

SEEDS = 2
"""Of searches for the least memory."""

SPARE = 1.05
"""Tight memory, as a share of the least peak among the starts of a search."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem to search: all that does not depend on the method."""

    model: str
    mesh: str
    hardware: str
    memory: str = FREE
    """`all`, `tight`, `least*1.02`, or a size."""

    @property
    def name(self) -> str:
        """As tables say it."""
        kind = "" if self.memory == FREE else f", memory {self.memory}"
        return f"{self.model} {self.mesh} {self.hardware}{kind}"


class Problems:
    """Makes problems, each new and as a search without further options has it, of programs that are
    traced and analysed once.

    Models are presets but for those that have other sizes here.
    """

    def __init__(self, sizes: Mapping[str, Sized] | None = None) -> None:
        self._sizes = {**MODELS, **LARGER} if sizes is None else sizes
        self._traced: dict[str, Program] = {}
        self._contexts: dict[tuple[str, int, int], Context] = {}
        self._stages: dict[Case, tuple[Stage, tuple[tuple[Move, ...], ...]]] = {}
        self._least: dict[Case, float] = {}

    def of(self, case: Case, kind: type[Problem] = Problem) -> Problem:
        """A problem of which no state has been evaluated but the start."""
        if case not in self._stages:
            stage = self.stage(case)
            offered = starts(stage, range(len(stage.context.mesh.names)))
            if case.memory == TIGHT:
                least = least_peak(_problem(stage, offered, Problem))
                stage = dataclasses.replace(stage, memory=min(int(SPARE * least), stage.capacity))
            elif case.memory.startswith(LEAST):
                times = float(case.memory.removeprefix(LEAST).lstrip("*") or 1)
                stage = dataclasses.replace(stage, memory=math.ceil(times * self.least(case)))
            self._stages[case] = stage, tuple(offered)
        return _problem(*self._stages[case], kind)

    def least(self, case: Case) -> float:
        """The least memory that a plan takes, as far as searches for it find: bytes of a device."""
        alike = dataclasses.replace(case, memory=FREE)
        if alike not in self._least:
            stage = dataclasses.replace(self.stage(alike), memory=1)
            offered = starts(stage, range(len(stage.context.mesh.names)))
            self._least[alike] = min(
                iterated_search(
                    _problem(stage, offered, Problem), BUDGET, seed, lambda done, best: None
                ).cost.peak
                for seed in range(SEEDS)
            )
        return self._least[alike]

    def stage(self, case: Case) -> Stage:
        """A program of which nothing is sharded, on its mesh and device type."""
        hardware, mesh = cost.load(case.hardware), Mesh.of(MESHES.get(case.mesh, case.mesh))
        window = int(hardware.regather_window.value)
        key = case.model, window, mesh.devices
        if key not in self._contexts:
            program = rewritten(self._program(case.model), mesh)
            analysis = analyse(program, window)
            self._contexts[key] = Context(analysis, mesh, hardware, hardware.usable_memory)
        known = dataclasses.replace(
            self._contexts[key], mesh=mesh, hardware=hardware, capacity=hardware.usable_memory
        )
        stage = Stage(known, replicated(known.analysis.program))
        if case.memory in (FREE, TIGHT) or case.memory.startswith(LEAST):
            return stage
        return dataclasses.replace(stage, memory=int(parse_size(case.memory, "memory")))

    def _program(self, model: str) -> Program:
        if model not in self._traced:
            sized = self._sizes.get(model, Sized(model, {}))
            text = lowered_text(models.build(sized.preset, **sized.changes))
            self._traced[model] = import_stablehlo(text)
        return self._traced[model]


def least_peak(problem: Problem) -> float:
    """The least memory that a start of a search takes."""
    every = itertools.chain(problem.starts, plain_starts(problem))
    return min(problem.replay(moves).cost.peak for moves in every)


def _problem(stage: Stage, offered: Sequence[tuple[Move, ...]], kind: type[Problem]) -> Problem:
    context = stage.context
    axes = range(len(context.mesh.names))
    return kind(
        context.analysis, *stage.folded, context.mesh, stage.cost_model, axes, None, offered
    )
