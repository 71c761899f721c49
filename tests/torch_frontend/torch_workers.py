"""Processes that train a parallelized module, beside one process that trains it as it is."""

import contextlib
import dataclasses
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import parallelize_module

from partita.torch.distribution import Distribution
from partita.torch.parallelize import distribute, parallelize, running
from partita.torch.styles import styles

STEPS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A module to train under a distribution."""

    name: str
    plan: Distribution
    make: object
    """Makes the module and its inputs by name."""
    loss: object
    styled: bool = False
    """Whether it is run with the styles of torch."""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def train(module, loss, inputs, targets, within=contextlib.nullcontext):
    """Losses and parameters after some steps of AdamW."""
    # The bias of keys has no gradient but rounding, which a smaller eps would make large.
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with within():
            found = loss(module(*inputs.values()), targets)
            found.backward()
        optimizer.step()
        losses.append(whole(found).item())
    return losses, {name: whole(p.detach()) for name, p in module.named_parameters()}


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _made(case):
    torch.manual_seed(0)
    return case.make()


def _styled(case, mesh):
    """The same with what torch has by name: `parallelize_module`."""
    module, inputs, targets = _made(case)
    expected_losses, expected = train(module, case.loss, inputs, targets)
    module, inputs, targets = _made(case)
    parallelize_module(module, mesh, styles(case.plan, module, 0))
    losses, made = train(module, case.loss, inputs, targets)
    return _how_far(losses, expected_losses, made, expected)


def _how_far(losses, expected_losses, made, expected):
    return {
        "loss": max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)),
        "parameters": max((made[n] - expected[n]).abs().max().item() for n in expected),
    }


def _difference(case, mesh):
    """How far the losses and parameters are from those of one process, and torch's collectives."""
    module, inputs, targets = _made(case)
    expected_losses, expected = train(module, case.loss, inputs, targets)
    module, inputs, targets = _made(case)
    if dist.get_rank():  # the numbers of the first process count
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(2)
    parallelize(case.plan, module, mesh)
    given = distribute(case.plan, {"targets": targets}, mesh)["targets"]
    with CommDebugMode() as comms, running(mesh):
        case.loss(module(*inputs.values()), given).backward()
    module.zero_grad()
    losses, made = train(module, case.loss, inputs, given, lambda: running(mesh))
    issued = {str(kind): count for kind, count in comms.get_comm_counts().items()}
    return _how_far(losses, expected_losses, made, expected) | {"issued": issued}


def _work(rank, size, port, cases, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    meshes = {}
    for case in cases:
        key = case.plan.axes, case.plan.sizes
        if key not in meshes:
            meshes[key] = init_device_mesh("cpu", key[1], mesh_dim_names=key[0])
        try:
            found = (_styled if case.styled else _difference)(case, meshes[key])
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
            if rank == 0 and os.environ.get("SHOW"):
                import traceback

                traceback.print_exc()
        if rank == 0:
            results[case.name] = found
            if os.environ.get("SHOW"):
                print(case.name, found, flush=True)
    dist.destroy_process_group()


def trained(cases, processes):
    """What each case comes to in so many processes, by name."""
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_work, (processes, free_port(), cases, results), nprocs=processes)
        return dict(results)
