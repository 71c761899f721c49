"""What experts would write for the built-in models: schedules, as patterns and dimensions.

The models know nothing of this. Dimensions are counted from the back where layers may be stacked
in front, so that a strategy holds for both.
"""

from __future__ import annotations

import dataclasses

from partita.errors import ModelError, closest
from partita.models import family
from partita.tactics import AutomaticPartition, ManualPartition, Tactic
from partita.tactics.manual import Dims

Patterns = dict[str, Dims]

BATCH: Patterns = {"batch*": 0}
"""Examples; of a graph its nodes and edges."""

PARAMETERS: Patterns = {"*['params']*": (1, 2, 3, 4, 0)}
"""Every parameter, with the moments and the gradient that follow it, in the first dimension that
divides. The front one comes last: it may be the one that a loop over stacked layers cuts."""

_HEADS: Patterns = {"['wq']": -2, "['wk']": -2, "['wv']": -2}
_GROUPED_HEADS: Patterns = {"['wq']": -3, "['wk']": -2, "['wv']": -2}
_GATED_FFN: Patterns = {"['w_gate']": -1, "['w_up']": -1}
_TIED_VOCABULARY: Patterns = {"['embed']": 0}
_VOCABULARY: Patterns = {"['embed']": 0, "['output']": 1}
_MOE: Patterns = _GROUPED_HEADS | {"['w_gate']": -3} | _VOCABULARY

_WIDTHS: dict[str, Patterns] = {
    "gpt": _HEADS | {"['w_in']": -1} | _TIED_VOCABULARY,
    "mlp": {"[0]['w']": 1, "[2]['w']": 1},
    "llama": _GROUPED_HEADS | _GATED_FFN | _VOCABULARY,
    "gemma": {"['wq']": -2} | _GATED_FFN | _TIED_VOCABULARY,
    "moe": _MOE,
    "vit": _HEADS | {"['w_in']": -1},
    "unet": _HEADS | {"['conv1']['w']": 3},
    "gns": {"['mlp'][0]['w']": 1, "['decode'][0]['w']": 1},
    "inference": {"['wq']": -2} | _GATED_FFN | _TIED_VOCABULARY,
    "resnet": {"['conv2']['w']": 3},
    "ssm": {"['w_branch']": -2, "['w_x']": -2} | _GATED_FFN | _TIED_VOCABULARY,
    "t5": _HEADS | {"['w_in']": -1} | _TIED_VOCABULARY,
}
"""What Megatron splits, by family: heads, hidden layers, channels, experts, states, vocabulary.
The matrix before is named; the one behind follows, as do biases, norms and optimizer state."""

_SHARED_EXPERT: Patterns = {"['shared_gate']": -1, "['shared_up']": -1}
_PRESET_WIDTHS: dict[str, Patterns] = {
    "moe-tiny": _MOE | _SHARED_EXPERT,
    "deepseek-moe-16b": _MOE | _SHARED_EXPERT,
}
"""Presets that have more to split than their families."""

SCHEDULES = ("data-parallel", "fsdp", "tensor-parallel", "automatic")
"""Names of the schedules that every model has."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Tactics, and a mesh of eight devices that they are for."""

    mesh: str
    tactics: tuple[Tactic, ...]


def schedule(preset: str, name: str, budget: int = 1500) -> Schedule:
    """A schedule for a built-in model, sized for its tiny presets.

    Args:
      preset: of the model.
      name: one of `SCHEDULES`.
      budget: of a search.

    Raises:
      ModelError: no such preset, or no such schedule.
    """
    if name == "data-parallel":
        return Schedule("data=8", (data_parallel(),))
    if name == "fsdp":
        return Schedule("data=8", (data_parallel(), fsdp()))
    if name == "tensor-parallel":
        return Schedule("data=2,model=4", (data_parallel(), tensor_parallel(preset)))
    if name == "automatic":
        return Schedule("data=4,model=2", (AutomaticPartition(budget=budget),))
    raise ModelError(
        f"no schedule {name!r}{closest(name, SCHEDULES)}; expected {', '.join(SCHEDULES)}"
    )


def data_parallel() -> ManualPartition:
    """Splits the batch along `data`."""
    return ManualPartition(BATCH, axis="data")


def fsdp() -> ManualPartition:
    """Splits all parameters along `data`; goes behind `data_parallel`."""
    return ManualPartition(PARAMETERS, axis="data")


def tensor_parallel(preset: str) -> ManualPartition:
    """Splits the widths inside the layers of a built-in model along `model`."""
    widths = _PRESET_WIDTHS.get(preset) or _WIDTHS[family(preset)]
    return ManualPartition(
        {f"*['params']*{pattern}": dims for pattern, dims in widths.items()}, axis="model"
    )
