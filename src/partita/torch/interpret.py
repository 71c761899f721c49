"""A captured graph, run with JAX: each operation by its function in the table.

What JAX traces carries the names of torch: the scope of an operation is the path of its module, and
its source line is that of the module's own code.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.ad_checkpoint import checkpoint_name

from partita.errors import UnsupportedError
from partita.torch.boundaries import Boundaries, boundaries
from partita.torch.capture import OF_LOSS, Captured
from partita.torch.operations import OPERATIONS
from partita.torch.operations.registry import operation
from partita.torch.operations.types import jax_type
from partita.torch.repeats import Run, module_path, runs

Values = dict[torch.fx.Node, Any]

_CHECKS = ("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range")
"""Operations that check something when they run, and compute nothing."""

LOSS = "loss_function"
"""The scope of what the loss computes of the outputs of the module."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)


@operation(torch.ops.partita.stop_gradient.default)
def _stop_gradient(value: Any) -> Any:
    return jax.lax.stop_gradient(value)


class Interpreter:
    """Runs one captured graph, with layers that repeat traced once."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.boundaries: Boundaries = boundaries(captured)
        self.runs = runs(captured.nodes)
        self._shared: dict[object, Callable[..., Any]] = {}

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The outputs by name, and the new values of the buffers that change.

        Args:
          inputs: arrays by the names of the inputs of the graph, except constants.

        Raises:
          UnsupportedError: an operation has no function, or its function cannot do this one.
        """
        captured = self.captured
        every = {**captured.constants, **inputs}
        every |= {other: every[first] for other, first in captured.tied.items()}
        values: Values = {}
        for node in captured.nodes:
            for other in node.all_input_nodes:
                if other.op == "placeholder" and other.name in every:
                    values[other] = jnp.asarray(every[other.name])
        for given in (*captured.outputs.values(), *captured.mutated.values()):
            if given.op == "placeholder":
                values[given] = jnp.asarray(every[given.name])
        for run in self.runs:
            self._run(run, values)
        return (
            {name: values[node] for name, node in captured.outputs.items()},
            {name: values[node] for name, node in captured.mutated.items()},
        )

    def _run(self, run: Run, values: Values) -> None:
        if run.shared is None:
            self._evaluate(run, values, run.layer)
            return
        function = self._shared.get(run.shared)
        if function is None:
            function = self._shared[run.shared] = jax.jit(functools.partial(self._layer, run))
        made = function(*(values[node] for node in run.inputs))
        values.update(zip(run.outputs, made, strict=True))

    def _layer(self, run: Run, *given: Any) -> tuple[Any, ...]:
        """A layer as a function of what it reads."""
        values: Values = dict(zip(run.inputs, given, strict=True))
        self._evaluate(run, values, re.sub(r"\d+$", "*", run.layer))
        return tuple(values[node] for node in run.outputs)

    def _evaluate(self, run: Run, values: Values, layer: str) -> None:
        tags = self.boundaries.tags
        for node in run.nodes:
            path = layer + module_path(node).removeprefix(run.layer)
            values[node] = evaluate(node, values, path)
            if node in tags:
                tag = layer + tags[node].removeprefix(run.layer)
                values[node] = checkpoint_name(values[node], tag)


def evaluate(node: torch.fx.Node, values: Values, path: str) -> Any:
    """Returns the result of an operation, in the type and shape that torch gives it.

    Args:
      node: of the graph.
      values: of the nodes that it reads.
      path: of the module that it is in, for names.
    """
    target = node.target
    name = getattr(getattr(target, "overloadpacket", None), "__name__", "")
    if name in _CHECKS:
        return None
    args = [_given(each, values) for each in node.args]
    kwargs = {key: _given(each, values) for key, each in node.kwargs.items()}
    if target is operator.getitem:
        return args[0][args[1]]
    function = OPERATIONS.get(str(target))
    if function is None:
        raise UnsupportedError(
            f"{_where(node, path)} uses {target}, of which partita does not know what it computes; "
            "say it in jax.numpy with @partita.torch.operation"
            f"(torch.ops.{target!s})"
        )
    try:
        with jax.named_scope(path or (LOSS if node.meta.get(OF_LOSS) else "module")):
            made = _at(node.meta.get("stack_trace") or "")(function, args, kwargs)
    except NotImplementedError as error:
        raise UnsupportedError(f"{_where(node, path)} uses {target}: {error}") from error
    return _as_torch(node, made, path)


def _given(argument: Any, values: Values) -> Any:
    """An argument of an operation, with arrays in place of nodes."""
    if isinstance(argument, torch.fx.Node):
        return values[argument]
    if isinstance(argument, list | tuple):
        return [_given(each, values) for each in argument]
    return argument


def _as_torch(node: torch.fx.Node, made: Any, path: str) -> Any:
    """A result in the types that torch gives it; shapes must agree as they are."""
    said = node.meta.get("val")
    if isinstance(said, torch.Tensor):
        made = jnp.asarray(made)
        if made.shape != tuple(said.shape):
            raise UnsupportedError(
                f"{_where(node, path)}: {node.target} made {made.shape} where torch makes "
                f"{tuple(said.shape)}"
            )
        return made.astype(jax_type(said.dtype))
    if isinstance(said, list | tuple):
        return [
            part
            if not isinstance(one, torch.Tensor)
            else jnp.asarray(part).astype(jax_type(one.dtype))
            for one, part in zip(said, made, strict=True)
        ]
    return made


def _where(node: torch.fx.Node, path: str) -> str:
    file, line = source(node.meta.get("stack_trace") or "")
    at = f" at {file}:{line}" if file else ""
    return f"{path or 'the module'}{at}"


@functools.lru_cache(2**14)
def source(trace: str) -> tuple[str, int]:
    """File and line of the innermost frame that is not torch's own; empty if there is none."""
    frames = _FRAME.findall(trace)
    own = [(file, int(line)) for file, line in frames if not file.startswith(_TORCH)]
    return own[-1] if own else ("", 0)


def _call(function: Any, args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


@functools.lru_cache(2**14)
def _at(trace: str) -> Callable[[Any, Any, Any], Any]:
    """Calls a function from a frame that stands at a line of the user's, as JAX will see it."""
    file, line = source(trace)
    if not file:
        return _call
    code: CodeType = _call.__code__
    # The body is one line below the first, at which a code object says that it begins.
    moved = code.replace(co_filename=file, co_firstlineno=max(line - 1, 1), co_name="forward")
    return FunctionType(moved, {})
