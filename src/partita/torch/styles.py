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
from partita.torch.distribution import Distribution
from partita.torch.placements import splits

_KINDS = nn.Linear | nn.Embedding | nn.LayerNorm | nn.RMSNorm
"""Modules that have styles."""

_SEQUENCE = 1
"""The dimension of the sequence in activations."""


def styles(plan: Distribution, module: nn.Module, axis: int) -> dict[str, ParallelStyle]:
    """The styles of the modules that are split along an axis; `TorchPlan.styles` says more."""
    found = {}
    for path, child in module.named_modules():
        if path in plan.modules and (style := _style(plan, path, child, axis)) is not None:
            found[path] = style
    return found


def exact_style(plan: Distribution, path: str, child: nn.Module) -> ParallelStyle | str | None:
    """The style that does exactly what a plan of one axis says of a module.

    Returns:
      The style; a reason, where the module is split otherwise; None where it is not split at all.
    """
    own = [f"{path}.{key}" if path else key for key, _ in child.named_parameters(recurse=False)]
    if not any(splits(plan.used[name][0]) for name in own if name in plan.used) and not (
        isinstance(child, nn.LayerNorm | nn.RMSNorm) and path in plan.modules
    ):
        return None
    if not isinstance(child, _KINDS):
        return f"there is no style for {type(child).__name__}"
    if not own or path not in plan.modules or not plan.used.keys() >= set(own):
        return None
    tied = {*plan.local.tied, *plan.local.tied.values()}
    if not tied.isdisjoint(own):
        return "its parameter is tied to another, which a style would not keep"
    if any(plan.used[name] != plan.parameters[name] for name in own):
        return f"its parameters are gathered along {plan.axes[0]}"
    try:
        style = _style(plan, path, child, 0, local=False)
    except UnsupportedError as error:
        return str(error)
    if style is None:
        return None
    at = plan.modules[path]
    if any(_at(p, 0).is_partial() for p in (at.arriving, at.outputs)):
        return "what goes into it or comes out of it has sums outstanding"
    expected = _parameters(style, child)
    for name in own:
        if plan.parameters[name][0] != expected.get(name.rpartition(".")[2], Replicate()):
            return f"{type(style).__name__} would place {name} otherwise"
    return style


def _parameters(style: ParallelStyle, child: nn.Module) -> dict[str, Placement]:
    """Returns the placements of a module's parameters under a style, except replicated ones."""
    columns = isinstance(style, ColwiseParallel)
    if isinstance(style, SequenceParallel):
        return {}
    if isinstance(child, nn.Embedding):
        return {"weight": Shard(1 if columns else 0)}
    return {"weight": Shard(0), "bias": Shard(0)} if columns else {"weight": Shard(1)}


def _style(
    plan: Distribution, path: str, child: nn.Module, axis: int, local: bool = True
) -> ParallelStyle | None:
    """The style of a module; `local` says whether what comes out is a local tensor."""
    weight = plan.used.get(f"{path}.weight")
    if weight is None:
        own = {name: placed[axis] for name, placed in plan.used.items() if _within(name, path)}
        if any(splits(placed) for placed in own.values()):
            raise UnsupportedError(
                f"{path} is a {type(child).__name__} with {', '.join(own)} split along "
                f"{plan.axes[axis]}, for which torch has no style; use parallelize"
            )
        return None
    at, split = plan.modules[path], weight[axis]
    ready = path in plan.ready and not local
    arrives = _at(at.inputs if ready else at.arriving, axis)
    leaves = _at(at.outputs, axis)
    if isinstance(split, Shard):
        return _of_matrix(plan, path, child, axis, (split.dim, arrives, leaves), local)
    norm = isinstance(child, nn.LayerNorm | nn.RMSNorm) or child.weight.ndim == 1
    if norm and arrives == leaves == Shard(_SEQUENCE):
        return SequenceParallel(sequence_dim=_SEQUENCE, use_local_output=local)
    return None


def _of_matrix(
    plan: Distribution,
    path: str,
    child: nn.Module,
    axis: int,
    placed: tuple[int, Placement, Placement],
    local: bool,
) -> ParallelStyle:
    dim, arrives, leaves = placed
    out = {"output_layouts": leaves, "use_local_output": local}
    if isinstance(child, nn.Linear) and dim == 0:
        return ColwiseParallel(input_layouts=arrives, **out)
    if isinstance(child, nn.Linear):
        return RowwiseParallel(input_layouts=arrives, **out)
    if isinstance(child, nn.Embedding) and dim == 0:
        return RowwiseParallel(input_layouts=Replicate(), **out)
    if isinstance(child, nn.Embedding):
        return ColwiseParallel(input_layouts=Replicate(), **out)
    raise UnsupportedError(
        f"{path} is a {type(child).__name__} whose weight is split in dimension {dim} along "
        f"{plan.axes[axis]}, for which torch has no style; use parallelize"
    )


def _within(name: str, path: str) -> bool:
    return name.rpartition(".")[0] == path


def _at(placements: tuple[tuple[Placement, ...], ...], axis: int) -> Placement:
    """The placement of the only tensor along an axis; replicated if there is none."""
    return placements[0][axis] if len(placements) == 1 else Replicate()
