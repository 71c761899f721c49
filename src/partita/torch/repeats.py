"""Repeated modules of a graph: each kind of layer is traced once, however many there are.

A layer is a run of operations inside of one module of a list (`layers.0`, `layers.1`, ...). Runs
that compute the same of their inputs share one function of JAX, which is called for each.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from partita.torch.capture import PATH, Captured

_NUMBERED = re.compile(r"^(?:[^.]+\.)*?\d+(?=\.|$)")


@dataclasses.dataclass(frozen=True)
class Run:
    """Operations that stand together in a graph and belong to one layer, or to none."""

    layer: str
    """The path of the layer; empty for none."""
    nodes: tuple[torch.fx.Node, ...]
    inputs: tuple[torch.fx.Node, ...] = ()
    """Nodes outside of the run that it reads, each once."""
    outputs: tuple[torch.fx.Node, ...] = ()
    """Nodes of the run that others read."""
    shared: object = None
    """Equal for layers that compute the same; None for one like no other."""


def module_path(node: torch.fx.Node) -> str:
    """The path of the module that an operation belongs to; empty for the outermost."""
    return str(node.meta.get(PATH, ""))


def layer_of(path: str) -> str:
    """The outermost module of a list in a path: `model.layers.3` of `model.layers.3.mlp`."""
    found = _NUMBERED.match(path)
    return found[0] if found else ""


def blocks(captured: Captured) -> list[str]:
    """Returns the modules of lists whose parameters no other module reads, in order."""
    outside = set()
    called = {layer_of(module_path(node)) for node in captured.nodes}
    names = {at: t.name for at, t in captured.parameters.items()}
    for node in captured.nodes:
        for other in node.all_input_nodes:
            name = names.get(other.name, "")
            if name and layer_of(name) != layer_of(module_path(node)):
                outside.add(layer_of(name))
    outside |= {layer_of(name) for both in captured.aliases.items() for name in both}
    own = {layer_of(name) for name in names.values()}
    return [path for path in captured.paths if path and path in (own & called) - outside]


def runs(nodes: Sequence[torch.fx.Node]) -> list[Run]:
    """The operations of a graph, in runs of one layer each."""
    made = [_run(layer, tuple(members)) for layer, members in groupby(nodes, lambda n: _layer(n))]
    count = Counter(run.shared for run in made if run.shared is not None)
    return [
        run
        if run.shared is None or count[run.shared] > 1
        else dataclasses.replace(run, shared=None)
        for run in made
    ]


def _layer(node: torch.fx.Node) -> str:
    return layer_of(module_path(node))


def _run(layer: str, nodes: tuple[torch.fx.Node, ...]) -> Run:
    if not layer:
        return Run(layer, nodes)
    inside = {node: number for number, node in enumerate(nodes)}
    inputs: dict[torch.fx.Node, int] = {}
    for node in nodes:
        for other in node.all_input_nodes:
            if other not in inside:
                inputs.setdefault(other, len(inputs))
    outputs = tuple(n for n in nodes if any(user not in inside for user in n.users))
    known: dict[torch.fx.Node, Any] = {
        **{n: ("in", k) for n, k in inputs.items()},
        **{n: ("own", k) for n, k in inside.items()},
    }
    key = (
        tuple(
            (
                str(n.target),
                _frozen(n.args, known),
                _frozen(n.kwargs, known),
                module_path(n).removeprefix(layer),
            )
            for n in nodes
        ),
        tuple(_type(n) for n in inputs),
        tuple(inside[n] for n in outputs),
    )
    return Run(layer, nodes, tuple(inputs), outputs, key)


def _type(node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return str(value)


def _frozen(argument: Any, known: dict[torch.fx.Node, Any]) -> Any:
    """An argument of an operation as something that can be compared."""
    if isinstance(argument, torch.fx.Node):
        return known[argument]
    if isinstance(argument, list | tuple):
        return tuple(_frozen(each, known) for each in argument)
    if isinstance(argument, dict):
        return tuple(sorted((k, _frozen(v, known)) for k, v in argument.items()))
    return (type(argument).__name__, str(argument))
