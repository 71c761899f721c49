"""Torch's own tools for a plan: `fully_shard` along one axis, `parallelize_module` along another.

They are used where they give exactly the placements of the plan. Everything else is left to
DTensors that partita places itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from partita.escape import printed
from partita.torch.distribution import Distribution
from partita.torch.placements import Placements, splits
from partita.torch.styles import exact_style

MOST_AXES = 2
"""Axes of a mesh that `fully_shard` and tensor parallelism share."""


@dataclasses.dataclass(frozen=True)
class Tools:
    """Tools with which `parallelize` carries out a plan, by the paths of modules."""

    axis: str | None
    """The axis along which `fully_shard` stores parameters in shards."""
    sharded: tuple[str, ...]
    """Paths of the modules to call `fully_shard` on: blocks, and the module itself (empty)."""
    styles: Mapping[str, ParallelStyle]
    """The modules that `parallelize_module` splits along the other axis."""
    others: Mapping[str, str]
    """Axes and modules that are left to DTensors of partita's own, with the reason."""

    @printed
    def __str__(self) -> str:
        rows = [f"{path or '(the module)':32} fully_shard on {self.axis}" for path in self.sharded]
        rows += [f"{path:32} {type(style).__name__}" for path, style in self.styles.items()]
        rows += [f"{what:32} DTensor: {why}" for what, why in self.others.items()]
        return "\n".join(rows)


def tools(plan: Distribution, module: nn.Module) -> Tools:
    """Returns the tools that `parallelize` uses for a module."""
    axis, reasons = sharded_axis(plan)
    rest = plan if axis is None else plan.without(plan.axes.index(axis))
    found: dict[str, ParallelStyle] = {}
    if len(rest.axes) == 1:
        for path, child in module.named_modules():
            style = exact_style(rest, path, child)
            if isinstance(style, ParallelStyle):
                found[path] = style
            elif style:
                reasons[path] = style
    sharded = (*plan.local.blocks, "") if axis else ()
    return Tools(axis, sharded, found, reasons)


def sharded_axis(plan: Distribution) -> tuple[str | None, dict[str, str]]:
    """The axis along which `fully_shard` does exactly what is planned, if there is one.

    Returns:
      The axis, and other axes along which parameters are stored in shards, with the reason why
      they are not that one.
    """
    reasons: dict[str, str] = {}
    for axis, name in enumerate(plan.axes):
        gathered = [p for p in plan.used if _is_gathered(plan, p, axis)]
        if not gathered:
            continue
        reason = _why_not(plan, axis)
        if reason is None:
            return name, reasons
        reasons[name] = reason
    return None, reasons


def _is_gathered(plan: Distribution, name: str, axis: int) -> bool:
    return splits(plan.parameters[name][axis]) and plan.used[name][axis].is_replicate()


def _why_not(plan: Distribution, axis: int) -> str | None:
    """Why `fully_shard` does not do what is planned along an axis; None if it does."""
    name, local = plan.axes[axis], plan.local
    if axis or len(plan.axes) > MOST_AXES:
        return "fully_shard takes the first axis of one or two"
    for parameter in plan.used:
        if not _is_gathered(plan, parameter, axis):
            return f"{parameter} is not stored in shards along it and gathered"
        if plan.parameters[parameter][axis] != _by_fully_shard(plan, parameter):
            return f"{parameter} is split along it before it is along another axis"
    if name in local.moved:
        return f"the forward moves activations along it: {local.moved[name]}"
    if local.changes:
        return f"the module changes {local.changes[0]}, which takes all of the batch"
    if output_dim(plan, axis) is None:
        return "the module returns what is not split along it alike"
    return None


def output_dim(plan: Distribution, axis: int) -> int | None:
    """The dimension that an axis splits in all that the module returns; None if there is none."""
    if not plan.local.returned:
        return None
    found = {p[axis] for p in plan.local.returned}
    (first, *others) = found
    return first.dim if not others and type(first) is Shard else None


def _by_fully_shard(plan: Distribution, name: str) -> Placement:
    """The placement that `fully_shard` gives a parameter along the first axis."""
    placements: Placements = plan.parameters[name]
    dim = placements[0].dim
    before = math.prod(
        size
        for size, p in zip(plan.sizes[1:], placements[1:], strict=True)
        if splits(p) and p.dim == dim
    )
    return Shard(dim) if before == 1 else _StridedShard(dim, split_factor=before)
