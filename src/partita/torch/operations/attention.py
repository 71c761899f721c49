"""Scaled dot product attention."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.torch.operations.registry import aten
from partita.torch.operations.types import wide


@aten("scaled_dot_product_attention")
def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as torch's kernels compute it: scores are never kept, and computed again in the
    backward, in 32 bits."""
    options = {"causal": is_causal, "scale": scale, "grouped": enable_gqa}
    return jax.checkpoint(functools.partial(_computed, **options))(query, key, value, mask)


def _computed(
    query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: Any, grouped: bool
) -> Any:
    """`[..., heads, positions, width]`."""
    if grouped and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (jnp.repeat(each, repeats, -3) for each in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.einsum("...qd,...kd->...qk", query, key)
    scores = wide(scores) * scale
    if causal:
        row = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        column = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(row >= column, scores, -jnp.inf)
    if mask is not None:
        boolean = mask.dtype == jnp.bool_
        lowest = float(np.finfo(np.float32).min)
        scores = jnp.where(mask, scores, lowest) if boolean else scores + mask
    weights = jax.nn.softmax(scores, -1).astype(value.dtype)
    return jnp.einsum("...qk,...kd->...qd", weights, value)
