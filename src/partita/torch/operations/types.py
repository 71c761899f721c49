"""Element types of torch in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from partita.errors import UnsupportedError

_TYPES = {
    torch.float64: jnp.float64,
    torch.float32: jnp.float32,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.float8_e4m3fn: jnp.float8_e4m3fn,
    torch.float8_e5m2: jnp.float8_e5m2,
    torch.int64: jnp.int64,
    torch.int32: jnp.int32,
    torch.int16: jnp.int16,
    torch.int8: jnp.int8,
    torch.uint8: jnp.uint8,
    torch.bool: jnp.bool_,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
}


def jax_type(dtype: torch.dtype) -> Any:
    """An element type as JAX has it; without `jax_enable_x64`, 64 bits are 32.

    Raises:
      UnsupportedError: JAX has none like it.
    """
    if dtype not in _TYPES:
        raise UnsupportedError(f"tensors of {dtype} cannot be planned")
    return jax.dtypes.canonicalize_dtype(_TYPES[dtype])


def converted(value: Any, dtype: torch.dtype | None) -> Any:
    """An array in another element type; None is the one that it has."""
    return value if dtype is None else jnp.asarray(value).astype(jax_type(dtype))


def wide(value: Any) -> Any:
    """An array in the type that torch computes sums and norms in: 32 bits at least."""
    small = value.dtype in (jnp.float16, jnp.bfloat16)
    return value.astype(jnp.float32) if small else value
