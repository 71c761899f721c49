"""Element types of torch in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from partita.errors import UnsupportedError

_TYPES = frozenset(
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool "
    "complex64 complex128".split()
)
"""Element types that torch and JAX call alike."""


def jax_type(dtype: torch.dtype) -> Any:
    """An element type as JAX has it; without `jax_enable_x64`, 64 bits are 32.

    Raises:
      UnsupportedError: JAX has none like it.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise UnsupportedError(f"tensors of {dtype} cannot be planned")
    return jax.dtypes.canonicalize_dtype(jnp.dtype(name))


def converted(value: Any, dtype: torch.dtype | None) -> Any:
    """An array in another element type; None is the one that it has."""
    return value if dtype is None else jnp.asarray(value).astype(jax_type(dtype))


def wide(value: Any) -> Any:
    """An array in the type that torch computes sums and norms in: 32 bits at least."""
    small = value.dtype in (jnp.float16, jnp.bfloat16)
    return value.astype(jnp.float32) if small else value
