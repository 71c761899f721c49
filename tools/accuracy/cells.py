"""The cells of the accuracy table, as data: models, schedules and topologies.

Every model is a built-in one, cut to few layers so that compiling takes about a minute, with widths
and batches of real ones, so that memory is GiBs and collectives are MiBs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from partita.models.strategies import data_parallel, fsdp, tensor_parallel
from partita.tactics import AutomaticPartition, Tactic
from partita.verify.backends import backend_for


@dataclasses.dataclass(frozen=True)
class Sized:
    """A preset of a built-in model, and what is changed of it."""

    preset: str
    changes: Mapping[str, Any]


MODELS: dict[str, Sized] = {
    "gpt": Sized("gpt-24l", {"layers": 1, "batch": 64, "sequence": 1024, "vocabulary": 32768}),
    "llama": Sized(
        "llama3-8b",
        {
            "layers": 4,
            "batch": 32,
            "sequence": 2048,
            "embed": 2048,
            "kv_heads": 16,
            "group": 1,
            "ffn": 5632,
            "vocabulary": 32768,
        },
    ),
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
    "vit": Sized("vit-l16", {"layers": 2}),
    "unet": Sized(
        "unet-ddpm",
        {"image": 64, "multipliers": (1, 2), "blocks": 1, "attention": (32,), "heads": 16},
    ),
    "gns": Sized("gns", {"steps": 2, "nodes": 16384, "edges": 262144, "hidden_layers": 2}),
    "decode": Sized("decode-7b", {"layers": 2, "new": 64}),
    "t5": Sized("t5-3b", {"layers": 2}),
    "ssm": Sized("ssm-1b", {"layers": 2}),
    "resnet": Sized("resnet50", {"blocks": (1, 1, 1, 1)}),
    "mlp": Sized(
        "mlp",
        {"batch": 16384, "sizes": (4096, 16384, 4096, 16384, 4096), "dtype": "bfloat16"},
    ),
}


FEW = ("gpt", "llama", "moe", "decode")
"""The models that are compiled for further topologies."""

CONFIRMED = 5
"""How many candidates of a search are compiled, as `partita.confirm` does by default."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices that are compiled for: how many, and which models."""

    devices: int
    models: tuple[str, ...] = tuple(MODELS)
    candidates: tuple[str, ...] = ()
    """The models of which the candidates of a search are compiled, too."""


TOPOLOGIES: dict[str, Topology] = {
    "v5e:4x4": Topology(16, candidates=(*FEW, "gns")),
    "v5p:2x2x4": Topology(16),
    "v6e:4x4": Topology(16, FEW),
    "h100:8": Topology(8, candidates=(*FEW, "gns")),
    "a100_80gb:8": Topology(8),
    "h100:2x8": Topology(16, FEW, candidates=FEW),
    "h200:8": Topology(8, FEW),
    "b200:8": Topology(8, FEW),
}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The axes of a mesh, and the tactics for a preset; or one of the candidates beside them."""

    axes: tuple[str, ...]
    tactics: Callable[[str], list[Tactic]]
    place: int = 0
    """Which of `Plan.candidates`, 0 for the plan itself."""

    def mesh(self, devices: int) -> str:
        """One axis of all devices; or two, the first of four."""
        sizes = (devices,) if len(self.axes) == 1 else (4, devices // 4)
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, sizes, strict=True))


SCHEDULES: dict[str, Schedule] = {
    "data-parallel": Schedule(("data",), lambda preset: [data_parallel()]),
    "fsdp": Schedule(("data",), lambda preset: [data_parallel(), fsdp()]),
    "tensor-parallel": Schedule(("model",), lambda preset: [*tensor_parallel(preset)]),
    "data+tensor": Schedule(
        ("data", "model"), lambda preset: [data_parallel(), *tensor_parallel(preset)]
    ),
    "automatic": Schedule(("data", "model"), lambda preset: [AutomaticPartition()]),
}


CANDIDATES: dict[str, Schedule] = {
    f"candidate-{place + 1}": dataclasses.replace(SCHEDULES["automatic"], place=place)
    for place in range(CONFIRMED)
}
"""The candidates of a search, between which a compiler may choose; the first is what it takes."""

BY_NAME = {**SCHEDULES, **CANDIDATES}


@dataclasses.dataclass(frozen=True)
class Single:
    """A model that is compiled under some schedules for one topology only."""

    sized: Sized
    schedules: tuple[str, ...]
    topology: str


def _filling(model: str, schedule: str, topology: str, **changes: Any) -> Single:
    """One of the models, with so much to do that it is predicted to fill memory to nine tenths."""
    sized = MODELS[model]
    return Single(Sized(sized.preset, {**sized.changes, **changes}), (schedule,), topology)


LARGE = ("fsdp", "automatic")

SINGLE: dict[str, Single] = {
    "gpt-large": Single(Sized("gpt-24l", {}), LARGE, "v5p:2x2x4"),
    "llama-large": Single(Sized("llama3-8b", {}), LARGE, "v5p:2x2x4"),
    "moe-large": Single(Sized("mixtral-8x7b", {}), LARGE, "v5p:2x2x4"),
    "gpt-full": _filling("gpt", "data-parallel", "v5e:4x4", batch=688),
    "llama-full": _filling("llama", "fsdp", "v5e:4x4", batch=528),
    "moe-full": _filling("moe", "data+tensor", "v5e:4x4", batch=856),
    "vit-full": _filling("vit", "tensor-parallel", "v5p:2x2x4", batch=21504),
    "decode-full": _filling("decode", "data+tensor", "v5e:4x4", batch=872),
    "gns-full": _filling("gns", "data-parallel", "v5e:4x4", edges=9306112),
    "resnet-full": _filling("resnet", "fsdp", "v5e:4x4", batch=14336),
    "mlp-full": _filling("mlp", "automatic", "v5e:4x4", batch=1572864),
    "gpt-large-h100": Single(Sized("gpt-24l", {}), LARGE, "h100:8"),
    "llama-large-h100": Single(Sized("llama3-8b", {}), LARGE, "h100:8"),
    "gpt-full-h100": _filling("gpt", "data-parallel", "h100:8", batch=1232),
    "llama-full-h100": _filling("llama", "fsdp", "h100:8", batch=728),
    "moe-full-h100": _filling("moe", "data+tensor", "h100:8", batch=1824),
    "vit-full-h100": _filling("vit", "tensor-parallel", "h100:8", batch=8000),
    "decode-full-h100": _filling("decode", "data+tensor", "h100:8", batch=1888),
    "gns-full-h100": _filling("gns", "data-parallel", "h100:8", edges=12648448),
    "resnet-full-h100": _filling("resnet", "fsdp", "h100:8", batch=24000),
    "ssm-full-h100": _filling("ssm", "fsdp", "h100:8", batch=960),
    "mlp-full-h100": _filling("mlp", "automatic", "h100:8", batch=1998848),
    "gpt-full-a100": _filling("gpt", "data-parallel", "a100_80gb:8", batch=1200),
    "llama-full-a100": _filling("llama", "fsdp", "a100_80gb:8", batch=728),
}
"""Models as large as they are, and models that nearly fill the memory."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model under a schedule for a topology: names of the tables above."""

    model: str
    schedule: str
    topology: str

    def definition(self) -> str:
        """All that the cell is made of, so that an old result of another cell is not taken."""
        return repr((sized(self.model), self.mesh, self.hardware))

    @property
    def mesh(self) -> str:
        """The mesh of its schedule on its devices."""
        return BY_NAME[self.schedule].mesh(TOPOLOGIES[self.topology].devices)

    @property
    def hardware(self) -> str:
        """The device type of its topology."""
        device_type = backend_for(self.topology).device_type
        assert device_type is not None
        return device_type


def sized(model: str) -> Sized:
    """The model of this name."""
    return MODELS[model] if model in MODELS else SINGLE[model].sized


def cells() -> list[Cell]:
    """All cells: a topology after the other, there a model after the other; single ones last."""
    return [
        *(
            Cell(model, schedule, name)
            for name, topology in TOPOLOGIES.items()
            for model in topology.models
            for schedule in (*SCHEDULES, *CANDIDATES)
            if schedule in SCHEDULES or model in topology.candidates
        ),
        *(
            Cell(model, schedule, single.topology)
            for model, single in SINGLE.items()
            for schedule in single.schedules
        ),
    ]
