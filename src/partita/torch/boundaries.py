"""Values at the boundaries of modules: what goes into each, and what comes out.

They get names in the program, `layers.0.mlp.output` and `layers.0.mlp.input`, so that tactics can
name them, reports show them, and placements of activations can be read from a plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch

from partita.torch.capture import OF_LOSS, Captured
from partita.torch.repeats import module_path


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """The activations that go into modules and come out of them, in the order of the graph."""

    inputs: Mapping[str, tuple[torch.fx.Node, ...]]
    """Inputs by path of the module, without parameters, buffers and scalars."""
    outputs: Mapping[str, tuple[torch.fx.Node, ...]]
    tags: Mapping[torch.fx.Node, str]
    """The name of each value that some module makes or takes."""
    returned: tuple[torch.fx.Node, ...]
    """Outputs of the outermost module that the loss reads; empty without a loss."""


def boundaries(captured: Captured) -> Boundaries:
    """The boundary values of all modules that a graph has operations of."""
    state = {*captured.parameters, *captured.buffers, *captured.constants, *captured.tied}
    returned = set(captured.outputs.values())
    inputs: dict[str, dict[torch.fx.Node, None]] = {}
    outputs: dict[str, dict[torch.fx.Node, None]] = {}
    for node in captured.nodes:
        own = _around(module_path(node))
        for other in node.all_input_nodes:
            if other.name not in state and _is_activation(other):
                theirs = set(_around(module_path(other))) if other.op != "placeholder" else set()
                for path in own:
                    if path not in theirs:
                        inputs.setdefault(path, {}).setdefault(other)
        if not _is_activation(node):
            continue
        users = [set(_around(module_path(user))) for user in node.users if user.op != "output"]
        for path in own:
            if node in returned or any(path not in theirs for theirs in users):
                outputs.setdefault(path, {}).setdefault(node)
    whole = _returned(captured)
    return Boundaries(
        {path: tuple(values) for path, values in inputs.items()},
        {path: tuple(values) for path, values in outputs.items()},
        _tags(inputs, outputs, whole),
        whole,
    )


def _returned(captured: Captured) -> tuple[torch.fx.Node, ...]:
    """The tensors that the outermost module makes and the loss reads."""
    return tuple(
        node
        for node in captured.nodes
        if not node.meta.get(OF_LOSS) and any(user.meta.get(OF_LOSS) for user in node.users)
    )


def only(
    values: Mapping[str, tuple[torch.fx.Node, ...]],
) -> Iterator[tuple[str, torch.fx.Node]]:
    """The modules with a single value at their boundary, each with it."""
    return ((path, nodes[0]) for path, nodes in values.items() if len(nodes) == 1)


def _around(path: str) -> list[str]:
    """A module and those around it, innermost first; the outermost is left out."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _is_activation(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.is_floating_point()


def _tags(
    inputs: Mapping[str, Mapping[torch.fx.Node, None]],
    outputs: Mapping[str, Mapping[torch.fx.Node, None]],
    whole: Sequence[torch.fx.Node],
) -> dict[torch.fx.Node, str]:
    """One name for each value: as the output of the innermost module that makes it."""
    found: dict[torch.fx.Node, str] = {}
    for path in sorted(outputs, key=lambda p: -p.count(".")):
        for number, node in enumerate(outputs[path]):
            found.setdefault(node, f"{path}.output{number or ''}")
    for path in sorted(inputs, key=lambda p: -p.count(".")):
        for number, node in enumerate(inputs[path]):
            if node.op != "placeholder":
                found.setdefault(node, f"{path}.input{number or ''}")
    for number, node in enumerate(filter(_is_activation, whole)):
        found.setdefault(node, f"output{number or ''}")
    return found
