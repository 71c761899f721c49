"""A torch module on example inputs -> its graph of ATen operations, with torch's own names.

`torch.export` captures the module without running it on real data; what it cannot capture is an
error that says where. Composite operations that say what they mean (`linear`, attention, layer
norm) stay as they are: their parts would only hide which dimensions go together.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import logging
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from partita.errors import TraceError, UnsupportedError, warn
from partita.torch import archive

KEPT = (
    "cross_entropy_loss dropout einsum embedding gelu group_norm layer_norm linear log_softmax "
    "matmul mse_loss one_hot rms_norm scaled_dot_product_attention silu softmax"
).split()
"""Composite operations that are not taken apart."""

_INSIDE = str(Path(torch.__file__).parent)

PATH = "partita_path"
"""Key in the metadata of a captured graph's node: the path of its module."""

OF_LOSS = "partita_of_loss"
"""Key in a node's metadata: True for nodes of the loss, which comes after the module."""

_MODULE = "module"
"""Attribute of `_Called` that holds the module."""

_PREFIX = f"{_MODULE}."
"""Prefix of the names of parameters, while the module is part of `_Called`."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the graph: its name in torch, and what is known of it without its numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Captured:
    """A module, captured: the graph, and what its inputs and outputs are."""

    name: str
    """The class of the module."""
    nodes: tuple[torch.fx.Node, ...]
    """The operations in order."""
    parameters: Mapping[str, Tensor]
    """Parameters by the name of their input in the graph."""
    trainable: frozenset[str]
    """Names of the parameters that are trained."""
    buffers: Mapping[str, Tensor]
    """Buffers that the graph reads, by the name of their input in the graph."""
    inputs: Mapping[str, Tensor]
    """Tensors among the arguments of the module, by the name of their input in the graph."""
    constants: Mapping[str, np.ndarray[Any, Any]]
    """Tensors that the module has made itself, by the name of their input in the graph."""
    outputs: Mapping[str, torch.fx.Node]
    """Outputs of the module, or the loss."""
    mutated: Mapping[str, torch.fx.Node]
    """The new values of buffers that the module changes, by name."""
    tied: Mapping[str, str]
    """Further inputs of the graph that are one of its parameters, with the first one for it."""
    aliases: Mapping[str, str]
    """Further names of parameters that have several: tied ones."""
    paths: tuple[str, ...]
    """The modules inside, by path."""


class _Called(torch.nn.Module):
    """A module with its arguments in one place, and a loss behind it."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any] | None, targets: bool):
        super().__init__()
        self.module = module
        self._loss, self._targets = loss, targets
        self.training = module.training

    def forward(self, args: Any, kwargs: Any, targets: Any) -> Any:
        """The outputs, or the loss."""
        made = self.module(*args, **kwargs)
        if self._loss is None:
            return made
        return self._loss(made, targets) if self._targets else self._loss(made)


def capture(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Callable[..., Any] | None = None,
    targets: Any = None,
) -> Captured:
    """Captures a module on example inputs; only their shapes and types count.

    Args:
      module: in the mode, `train()` or `eval()`, that it is planned for; its parameters may be on
        the meta device or fake.
      args: positional arguments.
      kwargs: keyword arguments.
      loss: a function of the outputs, and of the targets if there are any.
      targets: tensors, nested anyhow.

    Raises:
      TraceError: `torch.export` cannot capture the module on these inputs.
      UnsupportedError: it has inputs or outputs that are no tensors in the graph.
    """
    if not isinstance(module, torch.nn.Module):
        raise TraceError(f"expected a torch.nn.Module, got {type(module).__name__}")
    given = (tuple(args), dict(kwargs), targets)
    names, used = _input_names(module, given), module
    if any(p.is_meta for p in module.parameters()):
        used, given = _on_a_device(module, given)
    called = _Called(used, loss, targets is not None)
    name = type(module).__name__
    exported = _decomposed(_exported(called, given), name)
    for node in exported.graph.nodes:
        path = _path(node)
        node.meta[PATH] = path.removeprefix(_MODULE).removeprefix(".")
        node.meta[OF_LOSS] = loss is not None and path.partition(".")[0] != _MODULE
    trained = (n for n, p in module.named_parameters() if p.requires_grad)
    return _captured(
        exported,
        name,
        _PREFIX,
        names,
        frozenset(trained),
        _aliases(module),
        tuple(path for path, _ in module.named_modules()),
    )


def _on_a_device(module: torch.nn.Module, given: Any) -> tuple[torch.nn.Module, Any]:
    """A copy of a module on the meta device, and its inputs, with fake tensors on a CPU.

    Code that asks for the device of a tensor (autocast) knows no meta device.
    """
    mode, made = FakeTensorMode(allow_non_fake_inputs=True), copy.deepcopy(module)
    # With what is replaced: an object that is gone may leave its id to another one.
    known: dict[int, tuple[Any, Any]] = {}

    def fake(tensor: torch.Tensor) -> Any:
        with mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )

    for child in made.modules():
        for key, parameter in child._parameters.items():
            if parameter is not None:
                new = torch.nn.Parameter(fake(parameter), parameter.requires_grad)
                child._parameters[key] = known.setdefault(id(parameter), (new, parameter))[0]
        for key, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[key] = known.setdefault(id(buffer), (fake(buffer), buffer))[0]
    return made, pytree.tree_map_only(torch.Tensor, fake, given)


def read_exported(file: str | Path) -> Captured:
    """The forward of a module from a file of `torch.export.save`; nothing of the file is run.

    Raises:
      FileError: it cannot be read.
      UnsupportedError: it holds what cannot be planned.
    """
    path = Path(file)
    with _quiet():
        exported = archive.load(path)
    exported = _decomposed(exported, path.stem)
    paths: dict[str, None] = {}
    for node in exported.graph.nodes:
        node.meta[PATH] = _path(node)
        paths.setdefault(node.meta[PATH])
    names = [
        spec.arg.name
        for spec in exported.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT"
    ]
    return _captured(exported, path.stem, "", names, frozenset(), {}, tuple(paths))


def _captured(
    exported: Any,
    name: str,
    prefix: str,
    input_names: Sequence[str],
    trained: frozenset[str],
    aliases: Mapping[str, str],
    paths: tuple[str, ...],
) -> Captured:
    """Returns the capture of an exported program; names of its tensors begin with a prefix."""
    _warn_of_dropout(exported.graph, name)
    signature, constants = exported.graph_signature, exported.constants
    names = iter(input_names)
    found: dict[str, dict[str, Any]] = {k: {} for k in ("parameters", "buffers", "inputs", "made")}
    first: dict[str, str] = {}
    tied: dict[str, str] = {}
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    for spec in signature.input_specs:
        kind, at, value = spec.kind.name, spec.arg.name, values.get(spec.arg.name)
        if kind == "USER_INPUT":
            input_name = next(names)
            if isinstance(value, torch.Tensor):
                found["inputs"][at] = _tensor(input_name, value)
        elif kind in ("PARAMETER", "BUFFER"):
            own = spec.target.removeprefix(prefix)
            own = aliases.get(own, own)
            if first.setdefault(own, at) != at:
                tied[at] = first[own]
                continue
            found["parameters" if kind == "PARAMETER" else "buffers"][at] = _tensor(own, value)
        elif kind == "CONSTANT_TENSOR":
            found["made"][at] = _numbers(constants[spec.target], spec.target)
        else:
            raise UnsupportedError(
                f"{name} reads {spec.target or at}, a {kind.lower()}; only tensors can be planned"
            )
    outputs, mutated = _outputs(exported, prefix)
    read = {p.name for p in found["parameters"].values()}
    return Captured(
        name,
        tuple(n for n in exported.graph.nodes if n.op == "call_function"),
        found["parameters"],
        trained & read,
        found["buffers"],
        found["inputs"],
        found["made"],
        outputs,
        mutated,
        tied,
        aliases,
        paths,
    )


def _path(node: torch.fx.Node) -> str:
    """The path of the module that an operation belongs to; empty for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return str(path).partition("@")[0]


def _exported(called: _Called, given: Any) -> Any:
    """The module under `torch.export`."""
    try:
        with _quiet():
            return torch.export.export(called, given, strict=False)
    except Exception as error:
        raise _failed(type(called.module).__name__, error) from error


def _decomposed(exported: Any, name: str) -> Any:
    """Returns the program with composite operations decomposed, except for `KEPT`."""
    table = torch.export.default_decompositions()
    for kept in KEPT:
        packet = getattr(torch.ops.aten, kept)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    _keep_detached(exported)
    try:
        with _quiet():
            return exported.run_decompositions(table)
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> TraceError:
    """What to say of a module that torch cannot capture."""
    where, reason = _line(error), str(error).strip().split("\n")[0]
    dependent = "data-dependent" in str(error) or "DataDependent" in type(error).__name__
    hint = "; what the numbers of a tensor decide cannot be planned: compute it for all and mask"
    return TraceError(
        f"torch.export cannot capture {name} on the inputs given"
        f"{f', at {where}' if where else ''}: {type(error).__name__}: {reason}"
        f"{hint if dependent else ''}"
    )


@torch.library.custom_op("partita::stop_gradient", mutates_args=())
def stop_gradient(value: torch.Tensor) -> torch.Tensor:
    """Replaces `detach` while a graph is decomposed, where it would become an alias."""
    return value.clone()


@stop_gradient.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def _keep_detached(exported: Any) -> None:
    """Puts an operation of its own in place of every `detach`."""
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.detach.default:
            node.target = torch.ops.partita.stop_gradient.default
    exported.graph_module.recompile()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from logging a graph that it fails to make, as the error says it, and from
    warning of what it uses itself."""
    names = ("torch.fx", "torch._dynamo", "torch._subclasses", "torch.export")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _line(error: BaseException) -> str:
    """The user's line at which a capture fails; empty if it is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    for frame in reversed(frames):
        if not frame.filename.startswith((_INSIDE, ours, "<")):
            return f"{frame.filename}:{frame.lineno} ({frame.line})"
    return ""


def _tensor(name: str, value: Any) -> Tensor:
    return Tensor(name, tuple(int(size) for size in value.shape), value.dtype)


def _numbers(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        raise UnsupportedError(
            f"the module holds a tensor ({name}) without numbers, which are part of the program; "
            "make it in forward, or register it as a buffer"
        )
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _input_names(module: torch.nn.Module, given: Any) -> list[str]:
    """A name for every leaf of the arguments, as the module's `forward` calls it."""
    args, kwargs, targets = given
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    firsts = [
        plain[n].name if n < len(plain) else f"{rest}[{n - len(plain)}]" for n in range(len(args))
    ]
    rows = [*zip(firsts, args, strict=True), *kwargs.items()]
    if targets is not None:
        rows.append(("targets", targets))
    names = [first + path for first, value in rows for path in _paths(pytree.tree_structure(value))]
    if targets is None:
        names.append("targets")  # None is a leaf
    return names


def _paths(spec: Any) -> list[str]:
    """The paths of the leaves of a nested value, as Python would write them."""
    if spec.is_leaf():
        return [""]
    children, keys = spec.children(), spec.context
    if isinstance(keys, list | tuple) and keys and isinstance(keys[0], list | tuple):
        keys = keys[0]  # a data class: names of its fields, and of those that are None
    if not isinstance(keys, list | tuple) or len(keys) != len(children):
        shown = [f"[{number}]" for number in range(len(children))]
    elif spec.type in (dict, OrderedDict):
        shown = [f"[{key!r}]" for key in keys]
    else:
        shown = [f".{key}" for key in keys]
    return [
        first + path for first, child in zip(shown, children, strict=True) for path in _paths(child)
    ]


def _outputs(exported: Any, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors that a graph returns, by name, and the buffers that it changes."""
    (node,) = (n for n in exported.graph.nodes if n.op == "output")
    specs = exported.graph_signature.output_specs
    outputs: dict[str, Any] = {}
    mutated: dict[str, Any] = {}
    spec = exported.call_spec.out_spec
    users = iter(_paths(spec))
    for each, value in zip(specs, node.args[0], strict=True):
        if each.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT"):
            path = next(users)
            if isinstance(value, torch.fx.Node):
                outputs[f"output{path}"] = value
        elif each.kind.name == "BUFFER_MUTATION":
            mutated[each.target.removeprefix(prefix)] = value
        else:
            raise UnsupportedError(
                f"the module changes its input {each.target or each.arg.name} in place; make it "
                "return what it changes"
            )
    return outputs, mutated


def _aliases(module: torch.nn.Module) -> dict[str, str]:
    """Returns further names of tied parameters, each with the first name."""
    first: dict[int, str] = {}
    return {
        name: kept
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if (kept := first.setdefault(id(parameter), name)) != name
    }


def _warn_of_dropout(graph: torch.fx.Graph, name: str) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.dropout.default:
            _, rate, training = node.args
            if rate and training:
                warn(
                    f"{name} is in training mode with dropout of {rate}: it is planned without "
                    "the masks, which every device draws for itself",
                    UserWarning,
                )
                return
