"""What ATen operations compute, in `jax.numpy`: tables by theme, open to registration.

Each function takes what the operation takes in torch, arrays in place of tensors. Its result is
converted to the type that torch gives it, so the functions need not care about promotion.
"""

from __future__ import annotations

from partita.torch.operations import (
    attention,
    convolutions,
    creation,
    elementwise,
    indexing,
    losses,
    norms,
    products,
    reductions,
    shapes,
)
from partita.torch.operations.registry import OPERATIONS, operation

__all__ = [
    "OPERATIONS",
    "attention",
    "convolutions",
    "creation",
    "elementwise",
    "indexing",
    "losses",
    "norms",
    "operation",
    "products",
    "reductions",
    "shapes",
]
