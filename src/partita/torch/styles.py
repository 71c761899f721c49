"""A plan in the words of torch's own tensor parallelism: a style for each module."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)
from torch.distributed.tensor.placement_types import Placement

from partita.errors import UnsupportedError
from partita.torch.parallelize import Distribution

_SEQUENCE = 1
"""The dimension of the sequence in activations."""


def styles(plan: Distribution, module: nn.Module, axis: int) -> dict[str, ParallelStyle]:
    """The styles of the modules that are split along an axis; `TorchPlan.styles` says more."""
    found = {}
    for path, child in module.named_modules():
        if path in plan.modules and (style := _style(plan, path, child, axis)) is not None:
            found[path] = style
    return found


def _style(plan: Distribution, path: str, child: nn.Module, axis: int) -> ParallelStyle | None:
    weight = plan.used.get(f"{path}.weight")
    if weight is None:
        own = {name: placed[axis] for name, placed in plan.used.items() if _within(name, path)}
        if any(placed.is_shard() for placed in own.values()):
            raise UnsupportedError(
                f"{path} is a {type(child).__name__} with {', '.join(own)} split along "
                f"{plan.axes[axis]}, for which torch has no style; use parallelize"
            )
        return None
    at, split = plan.modules[path], weight[axis]
    arrives, leaves = _at(at.arriving, axis), _at(at.outputs, axis)
    if isinstance(split, Shard):
        return _of_matrix(plan, path, child, axis, (split.dim, arrives, leaves))
    norm = isinstance(child, nn.LayerNorm | nn.RMSNorm) or child.weight.ndim == 1
    if norm and arrives == leaves == Shard(_SEQUENCE):
        return SequenceParallel(sequence_dim=_SEQUENCE, use_local_output=True)
    return None


def _of_matrix(
    plan: Distribution,
    path: str,
    child: nn.Module,
    axis: int,
    placed: tuple[int, Placement, Placement],
) -> ParallelStyle:
    dim, arrives, leaves = placed
    if isinstance(child, nn.Linear) and dim == 0:
        return ColwiseParallel(input_layouts=arrives, output_layouts=leaves)
    if isinstance(child, nn.Linear):
        return RowwiseParallel(input_layouts=arrives, output_layouts=leaves)
    if isinstance(child, nn.Embedding) and dim == 0:
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=leaves)
    if isinstance(child, nn.Embedding):
        return ColwiseParallel(input_layouts=Replicate(), output_layouts=leaves)
    raise UnsupportedError(
        f"{path} is a {type(child).__name__} whose weight is split in dimension {dim} along "
        f"{plan.axes[axis]}, for which torch has no style; use parallelize"
    )


def _within(name: str, path: str) -> bool:
    return name.rpartition(".")[0] == path


def _at(placements: tuple[tuple[Placement, ...], ...], axis: int) -> Placement:
    """The placement of the only tensor along an axis; replicated if there is none."""
    return placements[0][axis] if len(placements) == 1 else Replicate()
