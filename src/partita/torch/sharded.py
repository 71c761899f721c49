"""`fully_shard` of torch, as a plan says: on each block that repeats, and on the module itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from partita.torch.distribution import Distribution
from partita.torch.tools import Tools


def shard_fully(plan: Distribution, module: nn.Module, mesh: DeviceMesh, found: Tools) -> None:
    """Stores the parameters of a module in shards along one axis.

    Gradients are summed, and not averaged as `fully_shard` does by default: the loss is that of
    the whole batch.
    """
    axis = plan.axes.index(found.axis or "")
    along, dims = mesh[plan.axes[axis]], {}
    whole = dict(module.named_parameters())  # held: one that is gone may leave its id to another
    for name, parameter in whole.items():
        as_of_the_first(parameter, along)
        if name in plan.parameters:
            dims[id(parameter)] = Shard(plan.parameters[name][axis].dim)
    for path in found.sharded:
        part = module.get_submodule(path)
        fully_shard(
            part,
            mesh=along,
            # What is outside of blocks, the last layer for one, the backward needs right away.
            reshard_after_forward=plan.local.regathers and path != "",
            shard_placement_fn=lambda parameter: dims.get(id(parameter)),
        )
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def as_of_the_first(parameter: nn.Parameter, along: DeviceMesh) -> None:
    """Gives a parameter the numbers that the first device of an axis has, as DTensors get them."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    if not local.is_meta:
        with torch.no_grad():
            local.copy_(distribute_tensor(local.detach(), along, [Replicate()]).to_local())
