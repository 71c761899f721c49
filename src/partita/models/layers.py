"""Layers that models share: products, norms, positions, masks and attention.

Functions of arrays, which know nothing of how they are partitioned. Matrices are used in the type
of what they are multiplied with; norms, scores and routers compute in float32.

Shape legend: B batch, S (and Q, of the queries) sequence, D embed, H key/value heads, G query
heads per key/value head, K head-dim, V head-dim of the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]
Shapes = dict[str, tuple[tuple[int, ...], int]]
"""Shape and fan-in of matrices, by name."""

Norm = Callable[[jax.Array, jax.Array], jax.Array]
"""Function of what is normed and of a scale."""

MASKED = -1e30
"""Score of a key that a query does not see."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """Parameters of a part of a layer, by name, and by how they start."""

    matrices: Shapes = dataclasses.field(default_factory=dict)
    """Random values."""
    others: Weights = dataclasses.field(default_factory=dict)
    """Biases of zeros, and the like, as they are at first."""
    norms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Widths of norms, which have a scale each."""

    def joined(self, other: Learned) -> Learned:
        """Both together."""
        return Learned(
            self.matrices | other.matrices,
            self.others | other.others,
            {**self.norms, **other.norms},
        )


def zeros(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Arrays of zeros."""
    return {name: jnp.zeros(shape) for name, shape in shapes.items()}


def matrices(key: jax.Array, shapes: Shapes) -> Weights:
    """Random matrices, of a variance of one over their fan-in."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape) * fan_in**-0.5
        for k, (name, (shape, fan_in)) in zip(keys, shapes.items(), strict=True)
    }


def dense(spec: str, x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """A product, as `jnp.einsum` writes it, in the type of `x`, and a bias."""
    out: jax.Array = jnp.einsum(spec, x, w.astype(x.dtype))
    return out if bias is None else out + bias.astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Root-mean-square norm over the last dimension, computed in float32."""
    x32 = x.astype(jnp.float32)
    rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)
    return (x32 * rms * scale).astype(x.dtype)


def rms_norm_from_one(x: jax.Array, scale: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Root-mean-square norm whose scale is learned as a difference from one."""
    x32 = x.astype(jnp.float32)
    rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)
    return (x32 * rms * (1 + scale)).astype(x.dtype)


def layer_norm(x: jax.Array, params: Weights | None = None, epsilon: float = 1e-6) -> jax.Array:
    """Layer norm over the last dimension, computed in float32, with what it has of a `scale` and
    a `bias`."""
    x32 = x.astype(jnp.float32)
    x32 = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)
    params = params or {}
    if "scale" in params:
        x32 = x32 * params["scale"]
    if "bias" in params:
        x32 = x32 + params["bias"]
    return x32.astype(x.dtype)


def rope(x: jax.Array, theta: jax.Array | float, positions: jax.Array | None = None) -> jax.Array:
    """Rotates the two halves of the last dimension of `[B, S, ..., K]` by position, `[S]`, which is
    counted from 0 by default."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if positions is None:
        positions = jnp.arange(x.shape[1], dtype=jnp.float32)
    angles = positions.astype(jnp.float32)[:, None] * frequencies
    angles = jnp.expand_dims(angles, range(1, x.ndim - 2))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def waves(positions: jax.Array, width: int, longest: float = 10_000.0) -> jax.Array:
    """Sines and cosines of positions `[...]` at falling frequencies, `[..., width]`."""
    half = width // 2
    frequencies = longest ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def capped(x: jax.Array, cap: float) -> jax.Array:
    """Limits the size of `x` smoothly to `cap`, unless that is 0."""
    return cap * jnp.tanh(x / cap) if cap else x


def causal(sequence: int, window: jax.Array | int | None = None) -> jax.Array:
    """Returns a mask `[Q, S]`: a query sees itself and earlier keys, the last `window` of them.

    A window masks: scores of all pairs of positions are computed.
    """
    back = jnp.arange(sequence)[:, None] - jnp.arange(sequence)[None, :]
    seen = back >= 0
    return seen if window is None else seen & (back < window)


def not_after(sequence: int) -> jax.Array:
    """The mask of `causal`, without a window, by comparing positions."""
    position = jnp.arange(sequence)
    return position[:, None] >= position[None, :]


def softmax(scores: jax.Array, mask: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """Weights of the keys, from scores `[..., Q, S]` in float32."""
    seen = scores if mask is None else jnp.where(mask, scores, MASKED)
    return jax.nn.softmax(seen, axis=-1).astype(dtype)


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None, scale: float = 0.0
) -> jax.Array:
    """Attention of queries `[B, Q, H, K]` to keys and values `[B, S, H, K]`.

    Args:
      q: queries.
      k: keys.
      v: values, whose last dimension may be another one.
      mask: `[Q, S]`, who sees whom.
      scale: of the scores; by default one over the root of the head dimension.
    """
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32)
    weights = softmax(scores * (scale or q.shape[-1] ** -0.5), mask, q.dtype)
    return jnp.einsum("bhqs,bshv->bqhv", weights, v)
