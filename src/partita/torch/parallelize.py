"""A plan applied to a module of torch: DTensors for parameters, hooks for activations.

The code of the module stays as it is, and so do the names of its parameters. What `tools` finds is
done by tools of torch; this is what is left, and what goes around it. Where a parameter is
stored otherwise than it is used, it is redistributed when the module reads it: gathered in the
forward, and its gradient reduced and scattered in the backward. At the boundaries of modules
activations are redistributed to where the plan has them; in between, DTensor decides.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ParallelStyle,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from partita.errors import ArgumentError, MeshError, UnsupportedError, closest
from partita.torch.distribution import Distribution, ModulePlacements
from partita.torch.placements import Placements
from partita.torch.sharded import as_of_the_first, shard_fully
from partita.torch.tools import Tools, output_dim, tools


def parallelize(plan: Distribution, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Distributes a module in place; `TorchPlan.parallelize` says how."""
    if plan.refusals:
        raise UnsupportedError(f"DTensor cannot do this plan: {'; '.join(plan.refusals)}")
    _check(plan, mesh)
    found = tools(plan, module)
    if found.axis is None:
        _tensors(plan, module, mesh, found)
        _once_reduced(module)
        _whole_module(plan, module, mesh)
        return module
    axis = plan.axes.index(found.axis)
    rest, others = plan.without(axis), None
    if rest.axes:
        others = mesh[rest.axes]
        _tensors(rest, module, others, found)
        _whole_module(rest, module, others)
    shard_fully(plan, module, mesh, found)
    _on_its_part(plan, module, mesh, axis, others)
    return module


def _tensors(plan: Distribution, module: nn.Module, mesh: DeviceMesh, found: Tools) -> None:
    """Makes parameters DTensors, and redistributes activations at the boundaries of modules."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for path, child in list(module.named_modules()):
        if path in found.styles:
            _in_style(child, mesh, found.styles[path])
            child.register_forward_hook(_reduces_gradients)
            _read_alike(plan, path, child)
            continue
        names = {key: f"{path}.{key}" if path else key for key in child._parameters}
        own = {key: name for key, name in names.items() if name in plan.parameters}
        for key, name in own.items():
            child._parameters[key] = _distributed(child, key, plan.parameters[name], mesh, made)
        moved = {key: plan.used[name] for key, name in own.items() if _gathers(plan, name)}
        if moved:
            _read_as(child, moved)
        if path and path in plan.modules:
            _hook(child, plan.modules[path])
        _read_alike(plan, path, child)


def _in_style(module: nn.Module, mesh: DeviceMesh, style: ParallelStyle) -> None:
    """Splits a module as a style says; what it keeps whole is that of the first device."""
    trained = {key: p.requires_grad for key, p in module.named_parameters()}
    if isinstance(style, SequenceParallel):  # which neither sends parameters nor keeps them frozen
        for parameter in module.parameters():
            as_of_the_first(parameter, mesh)
    parallelize_module(module, mesh, style)
    for key, parameter in module.named_parameters():
        parameter.requires_grad_(trained[key])


def distribute(
    plan: Distribution, tensors: Mapping[str, torch.Tensor], mesh: DeviceMesh
) -> dict[str, torch.Tensor]:
    """Inputs by name as DTensors."""
    for name in tensors:
        if name not in plan.inputs:
            raise ArgumentError(
                f"{name!r} is no input of the plan{closest(name, plan.inputs)}; they are "
                f"{', '.join(plan.inputs)}"
            )
    return {name: _placed(t, plan.inputs[name], mesh) for name, t in tensors.items()}


def _check(plan: Distribution, mesh: DeviceMesh) -> None:
    names, sizes = mesh.mesh_dim_names, tuple(mesh.shape)
    if names != plan.axes or sizes != plan.sizes:
        wanted = ", ".join(f"{a}={n}" for a, n in zip(plan.axes, plan.sizes, strict=True))
        shown = ", ".join(f"{a}={n}" for a, n in zip(names or ("?",) * len(sizes), sizes))  # noqa: B905
        raise MeshError(f"the plan is for a mesh of {wanted}, and the DeviceMesh has {shown}")


def _distributed(
    module: nn.Module,
    key: str,
    placements: Placements,
    mesh: DeviceMesh,
    made: dict[int, tuple[nn.Parameter, nn.Parameter]],
) -> nn.Parameter | None:
    """A parameter as a DTensor; a tied one is made once."""
    parameter = module._parameters[key]
    if parameter is None:
        return None
    if id(parameter) not in made:
        tensor = distribute_tensor(parameter.detach(), mesh, placements)
        known = nn.Parameter(tensor, parameter.requires_grad)
        # With what is replaced: an object that is gone may leave its id to another one.
        made[id(parameter)] = made[id(known)] = known, parameter
    return made[id(parameter)][0]


def _once_reduced(module: nn.Module) -> None:
    """Reduces gradients as they arrive: each operation of an optimizer would reduce them again."""
    for parameter in module.parameters():
        if parameter.requires_grad and isinstance(parameter, DTensor):
            parameter.register_hook(
                functools.partial(_redistributed, placements=parameter.placements)
            )


def _redistributed(grad: DTensor, placements: Placements) -> DTensor:
    return grad.redistribute(placements=placements)


def _gathers(plan: Distribution, name: str) -> bool:
    return name in plan.used and plan.used[name] != plan.parameters[name]


def _read_as(module: nn.Module, used: Mapping[str, Placements]) -> None:
    """Redistributes parameters whenever the module reads them.

    A property of a class of its own comes before what `nn.Module` keeps under the same name, so
    that state dicts and optimizers see the parameter as it is stored.
    """

    def reader(key: str, placements: Placements) -> property:
        def read(self: nn.Module) -> Any:
            stored = self._parameters[key]
            if isinstance(stored, DTensor):
                return stored.redistribute(placements=placements)
            return stored

        def write(self: nn.Module, value: Any) -> None:
            self._parameters[key] = value

        return property(read, write)

    kind = type(module)
    members = {key: reader(key, placements) for key, placements in used.items()}
    module.__class__ = type(kind.__name__, (kind,), members)


def _hook(module: nn.Module, planned: ModulePlacements) -> None:
    """Redistributes what goes into a module and comes out of it, where that is one tensor."""
    if len(planned.inputs) == 1:
        (into,) = planned.inputs

        def before(_: nn.Module, args: tuple[Any, ...]) -> Any:
            if args and isinstance(args[0], DTensor) and args[0].is_floating_point():
                return (_moved(args[0], into), *args[1:])
            return None

        module.register_forward_pre_hook(before)
    if len(planned.outputs) == 1:
        _moves_output(module, planned.outputs[0])
        module.register_forward_hook(_reduces_gradients)


def _read_alike(plan: Distribution, path: str, module: nn.Module) -> None:
    """Redistributes what a module makes once, for all that read it alike."""
    if path in plan.read:
        _moves_output(module, plan.read[path])


def _moves_output(module: nn.Module, target: Placements) -> None:
    """Redistributes what comes out of a module."""

    def after(_: nn.Module, __: Any, made: Any) -> Any:
        return _moved(made, target) if isinstance(made, DTensor) else made

    module.register_forward_hook(after)


def _moved(tensor: DTensor, planned: Placements) -> DTensor:
    """A tensor as planned; sums that stay outstanding there are left as they are."""
    if tensor.ndim == 0:
        return tensor
    target = tuple(map(_target, tensor.placements, planned))
    if target == tensor.placements:
        return tensor
    return tensor.redistribute(placements=target)


def _masked(placement: Placement) -> bool:
    """Returns whether a placement is of sums of a look-up in a part of the rows.

    torch has a subclass of `Partial` for these.
    """
    return placement.is_partial() and type(placement) is not Partial


def _reduces_gradients(_: nn.Module, __: Any, made: Any) -> None:
    """Reduces the gradient of a module's output as soon as it is complete."""
    if isinstance(made, DTensor) and made.requires_grad:
        made.register_hook(functools.partial(_reduced, placements=made.placements))


def _reduced(grad: DTensor, placements: Placements) -> DTensor:
    """A gradient whose sums are taken, where those of the activation are.

    Left to itself, DTensor takes them in shards at the next operation, and gathers these at the one
    behind it; and it cannot hand them on to a look-up in a part of the rows.
    """
    both = zip(grad.placements, placements, strict=True)
    target = [p if now.is_partial() and not p.is_partial() else now for now, p in both]
    return grad.redistribute(placements=target)


def _target(now: Placement, planned: Placement) -> Placement:
    """Returns the placement to move a tensor to along one axis."""
    if not isinstance(planned, Partial):
        return planned
    return Replicate() if _masked(now) else now  # they can be added to no other sums


def _whole_module(plan: Distribution, module: nn.Module, mesh: DeviceMesh) -> None:
    """Distributes the inputs, and lets plain tensors of the code stand for replicated ones."""

    def place(tensor: torch.Tensor, placements: Placements) -> Any:
        return _placed(tensor, placements, mesh)

    module.forward = _taking(plan, module.forward, place, lambda: running(mesh))


def _on_its_part(
    plan: Distribution, module: nn.Module, mesh: DeviceMesh, axis: int, others: DeviceMesh | None
) -> None:
    """Makes each device compute the module on its part of the batch, as `fully_shard` requires.

    Args:
      plan: of the whole mesh.
      module: to compute.
      mesh: the whole mesh.
      axis: the number of the axis that splits the batch.
      others: the mesh of the other axes, if there are any.
    """
    dim = output_dim(plan, axis)

    def place(tensor: torch.Tensor, placements: Placements) -> Any:
        local = _placed(tensor, placements, mesh).to_local()
        rest = (*placements[:axis], *placements[axis + 1 :])
        return local if others is None else DTensor.from_local(local, others, rest)

    def joined(made: Any) -> Any:
        if not isinstance(made, torch.Tensor) or not made.ndim:
            return made
        rest: Placements = tuple(Replicate() for _ in plan.axes[1:])
        if isinstance(made, DTensor):
            made, rest = made.to_local(), made.placements
        return DTensor.from_local(made, mesh, (*rest[:axis], Shard(dim), *rest[axis:]))

    inner = _taking(plan, module.forward, place, contextlib.nullcontext)

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(joined, inner(*args, **kwargs))

    module.forward = forward


def _taking(
    plan: Distribution,
    forward: Callable[..., Any],
    place: Callable[[torch.Tensor, Placements], Any],
    within: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Callable[..., Any]:
    """A forward that takes tensors in the placements of the plan's inputs."""
    default = tuple(Replicate() for _ in plan.axes)
    parameters = list(_names_of(forward))

    def placed(name: str, value: Any) -> Any:
        leaves, spec = pytree.tree_flatten(value)
        found = [
            p for n, p in plan.inputs.items() if n == name or n.startswith((f"{name}.", f"{name}["))
        ]
        planned = iter(found)
        made = [
            place(leaf, next(planned, default)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        return pytree.tree_unflatten(made, spec)

    @functools.wraps(forward)
    def taking(*args: Any, **kwargs: Any) -> Any:
        names = [*parameters, *("",) * len(args)]
        placed_args = [placed(name, value) for name, value in zip(names, args, strict=False)]
        placed_kwargs = {name: placed(name, value) for name, value in kwargs.items()}
        with within():
            return forward(*placed_args, **placed_kwargs)

    return taking


def _names_of(forward: Callable[..., Any]) -> Iterator[str]:
    for each in inspect.signature(forward).parameters.values():
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            yield each.name


def _placed(tensor: torch.Tensor, placements: tuple[Placement, ...], mesh: DeviceMesh) -> Any:
    if isinstance(tensor, DTensor):
        return tensor.redistribute(placements=placements)
    # Every rank has all of it, so each takes its part of its own.
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


_RUNNING: contextvars.ContextVar[bool] = contextvars.ContextVar("running", default=False)


@contextlib.contextmanager
def running(mesh: DeviceMesh) -> Iterator[None]:
    """Context that a step of DTensors runs in: plain tensors count as replicated ones.

    On CPUs attention is computed in parts, as DTensor knows no fused kernel there.
    """
    if _RUNNING.get():  # what torch has for it ends with the inner of two
        yield
        return
    token = _RUNNING.set(True)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(implicit_replication())
            if mesh.device_type == "cpu":
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            yield
    finally:
        _RUNNING.reset(token)
