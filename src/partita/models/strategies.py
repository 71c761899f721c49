"""Expert strategies for the built-in models: schedules, as patterns and dimensions.

The models know nothing of this. The ready-made tactics know transformers. For other models,
dimensions are counted from the back where layers may be stacked in front: a strategy holds for
both.
"""

from __future__ import annotations

import dataclasses

from partita.errors import ModelError, closest
from partita.models import family
from partita.search import BUDGET
from partita.tactics import (
    AutomaticPartition,
    DataParallel,
    ExpertParallel,
    ManualPartition,
    Megatron,
    Tactic,
    ZeRO,
)
from partita.tactics.placement import Dims

Patterns = dict[str, Dims]

BATCH: Patterns = {"batch*": 0}
"""Examples; of a graph its nodes and edges."""

_WIDTHS: dict[str, Patterns] = {
    "mlp": {"[0]['w']": 1, "[2]['w']": 1},
    "unet": {"['wq']": -2, "['wk']": -2, "['wv']": -2, "['conv1']['w']": 3},
    "gns": {"['mlp'][0]['w']": 1, "['decode'][0]['w']": 1},
    "resnet": {"['conv2']['w']": 3},
    "ssm": {"['w_branch']": -2, "['w_x']": -2, "['w_gate']": -1, "['w_up']": -1, "['embed']": 0},
}
"""Patterns to split for families whose widths are not those of a transformer.

These are hidden layers, channels and states. The matrix before is named; the one behind follows, as
do biases, norms and optimizer state.
"""

_EXPERTS = ("moe", "gpt_oss", "deepseek")
"""Families all of whose presets have experts."""

SCHEDULES = ("data-parallel", "fsdp", "tensor-parallel", "automatic")
"""Names of the schedules that every model has."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Tactics, and a mesh of eight devices that they are for."""

    mesh: str
    tactics: tuple[Tactic, ...]


def schedule(preset: str, name: str, budget: int = BUDGET) -> Schedule:
    """A schedule for a built-in model, sized for its tiny presets.

    Args:
      preset: of the model.
      name: one of `SCHEDULES`.
      budget: of a search.

    Raises:
      ModelError: no such preset, or no such schedule.
    """
    known: dict[str, tuple[str, tuple[Tactic, ...]]] = {
        "data-parallel": ("data=8", (data_parallel(),)),
        "fsdp": ("data=8", (data_parallel(), fsdp())),
        "tensor-parallel": ("data=2,model=4", (data_parallel(), *tensor_parallel(preset))),
        "automatic": ("data=4,model=2", (AutomaticPartition(budget=budget),)),
    }
    if name not in known:
        raise ModelError(f"no schedule {name!r}{closest(name, known)}; expected {', '.join(known)}")
    return Schedule(*known[name])


def data_parallel() -> Tactic:
    """Splits the batch along `data`."""
    return DataParallel("data", BATCH)


def fsdp() -> Tactic:
    """Splits all parameters along `data`; goes behind `data_parallel`."""
    return ZeRO(3, "data")


def tensor_parallel(preset: str, axis: str = "model") -> tuple[Tactic, ...]:
    """Splits the widths inside the layers of a built-in model along an axis."""
    if family(preset) in _EXPERTS:
        return ExpertParallel(axis), Megatron(axis)
    if family(preset) not in _WIDTHS:
        return (Megatron(axis),)
    widths = _WIDTHS[family(preset)].items()
    return (ManualPartition({f"*['params']*{name}": dims for name, dims in widths}, axis=axis),)
