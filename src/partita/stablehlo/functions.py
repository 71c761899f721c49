"""JAX functions written out in a module that is being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from partita.errors import UnsupportedError
from partita.stablehlo import mlir
from partita.stablehlo.inlining import inline
from partita.stablehlo.refusals import tensor_type


def lowered(function: Callable[..., Any], types: Sequence[Any], platform: str) -> Any:
    """The module of a function of arrays, all of it in `main`; within an MLIR context.

    Raises:
      UnsupportedError: JAX cannot lower it for the platform.
    """
    try:
        traced = jax.jit(function, keep_unused=True).trace(*types)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    except Exception as error:
        name = getattr(function, "__name__", str(function))
        raise UnsupportedError(
            f"JAX cannot lower {name} for {platform}, on "
            f"{', '.join(f'{t.dtype}{list(t.shape)}' for t in types)}: {error}"
        ) from error
    module = mlir.parse(text)
    inline(module)
    return module


def write_out(
    function: Callable[..., Any], operands: Sequence[Any], platform: str, location: Any
) -> list[Any]:
    """Writes the operations of a function of arrays at the insertion point; returns its results.

    Args:
      function: is traced on arrays of the types of the operands.
      operands: values of the module.
      platform: what the function is lowered for, as JAX names it.
      location: of what is written.
    """
    types = [mlir.shape_of(tensor_type(value.type)) for value in operands]
    module = lowered(function, types, platform)  # lives until all of it is written
    return list(mlir.inlined(mlir.main_function(module), operands, location))
