"""What methods are compared on: small models of real widths, meshes and device types, as data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from partita import cost, models
from partita.analysis import Analysis, ClassGraph, analyse, fold
from partita.cost import CostModel
from partita.mesh import Mesh
from partita.search import Problem
from partita.stablehlo.importer import import_stablehlo
from partita.tiling import untiled
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

MESHES = {"2x2": "data=2,model=2", "4x2": "data=4,model=2", "2x2x2": "x=2,y=2,z=2"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem to search: all that does not depend on the method."""

    model: str
    mesh: str
    hardware: str
    memory: float
    """As a share of what the step takes on one device; 1.0 leaves the device type's own."""

    @property
    def name(self) -> str:
        """As tables say it."""
        tight = "" if self.memory == 1.0 else f", {self.memory:.0%} of the memory"
        return f"{self.model} {self.mesh} {self.hardware}{tight}"


class Problems:
    """Makes problems, each new, of programs that are traced and analysed once."""

    def __init__(self) -> None:
        self._analysed: dict[tuple[str, int], tuple[Analysis, ClassGraph]] = {}
        self._costs: dict[Case, CostModel] = {}

    def of(self, case: Case, kind: type[Problem] = Problem) -> Problem:
        """A problem of which no state has been evaluated but the start."""
        hardware, mesh = cost.load(case.hardware), Mesh.of(MESHES.get(case.mesh, case.mesh))
        window = int(hardware.regather_window.value)
        key = case.model, window
        if key not in self._analysed:
            sized = MODELS[case.model]
            text = lowered_text(models.build(sized.preset, **sized.changes))
            analysis = analyse(import_stablehlo(text), window)
            self._analysed[key] = analysis, fold(analysis)
        analysis, graph = self._analysed[key]
        if case not in self._costs:
            model = CostModel(graph, analysis, mesh, hardware)
            if case.memory != 1.0:
                start = Problem(analysis, graph, untiled(graph), mesh, model, ()).start
                capacity = min(int(case.memory * start.cost.peak), model.capacity)
                model = CostModel(graph, analysis, mesh, hardware, capacity)
            self._costs[case] = model
        axes = range(len(mesh.names))
        return kind(analysis, graph, untiled(graph), mesh, self._costs[case], axes)
