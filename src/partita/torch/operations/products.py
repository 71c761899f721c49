"""Matrix products. They stay in as many dimensions as torch gives them: nothing is merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from partita.torch.operations.registry import aten, table

table({"mm bmm matmul": jnp.matmul})


@aten("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    made = jnp.einsum("...i,oi->...o", x, weight) if weight.ndim == 2 else jnp.dot(x, weight)
    return made if bias is None else made + bias


@aten("addmm addmv")
def _addmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    made = jnp.matmul(a, b)
    made = made if alpha == 1 else alpha * made
    return made + (bias if beta == 1 else beta * bias)


@aten("einsum")
def _einsum(equation: str, operands: Sequence[Any], path: Any = None) -> Any:
    return jnp.einsum(equation, *operands)
