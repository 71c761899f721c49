"""JAX functions written out in a module that is being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from partita.stablehlo import mlir, normal_form
from partita.stablehlo.refusals import tensor_type


def write_out(
    function: Callable[..., Any], operands: Sequence[Any], platform: str, location: Any
) -> list[Any]:
    """What a function of arrays makes of values, computed at the insertion point.

    Args:
      function: is traced on arrays of their types.
      operands: values of the module.
      platform: what it is lowered for, as JAX names it.
      location: of what is written.
    """
    types = [mlir.shape_of(tensor_type(value.type)) for value in operands]
    traced = jax.jit(function, keep_unused=True).trace(*types)
    lowered = traced.lower(lowering_platforms=(platform,))
    module = mlir.parse(lowered.as_text())
    normal_form.inline(module)
    return list(mlir.inlined(mlir.main_function(module), operands, location))
