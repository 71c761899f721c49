"""Layers that models share: norms, rotary positions, attention, gated and expert feed-forwards.

Functions of arrays, which know nothing of how they are partitioned. Matrices are used in the type
of what they are multiplied with; norms, scores and routers compute in float32.

Shape legend: B batch, S (and Q, of the queries) sequence, D embed, H key/value heads, G query
heads per key/value head, K head-dim, V head-dim of the values, E experts, C capacity, F ffn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]
Shapes = dict[str, tuple[tuple[int, ...], int]]
"""Shape and fan-in of matrices, by name."""

MASKED = -1e30
"""Score of a key that a query does not see."""


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


def rope(x: jax.Array, theta: jax.Array | float) -> jax.Array:
    """Rotates the two halves of the last dimension by position, `[B, S, ..., K]`."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
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


def causal(sequence: int, window: jax.Array | int | None = None) -> jax.Array:
    """Whether a query sees a key, `[Q, S]`: itself and those before it, the last `window` of them.

    A window masks: scores of all pairs of positions are computed.
    """
    back = jnp.arange(sequence)[:, None] - jnp.arange(sequence)[None, :]
    seen = back >= 0
    return seen if window is None else seen & (back < window)


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


def gated(
    x: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.silu,
) -> jax.Array:
    """A gated feed-forward, `[B, S, D] -> [B, S, D]`: SwiGLU, or with GELU GeGLU."""
    hidden = activation(dense("bsd,df->bsf", x, gate)) * dense("bsd,df->bsf", x, up)
    return dense("bsf,fd->bsd", hidden, down)


class Routing(NamedTuple):
    """Where each token goes."""

    dispatch: jax.Array
    """`[B, S, E, C]`: one where a token takes a place of an expert, else zero."""
    combine: jax.Array
    """The same, times the weight of the expert for the token."""


def capacity(factor: float, sequence: int, top: int, experts: int) -> int:
    """Tokens of one sequence that an expert takes, `factor` times an even load."""
    return math.ceil(factor * sequence * top / experts)


def chosen(scores: jax.Array, top: int) -> jax.Array:
    """One for the `top` largest of the last dimension, else zero, int32."""
    _, indices = jax.lax.top_k(jax.lax.stop_gradient(scores), top)
    return jax.nn.one_hot(indices, scores.shape[-1], dtype=jnp.int32).sum(axis=-2)


def route(sent: jax.Array, weights: jax.Array, places: int, dtype: jnp.dtype) -> Routing:
    """Gives tokens their places; those beyond the capacity of an expert skip it.

    Args:
      sent: `[B, S, E]`, int32: one where a token goes to an expert.
      weights: of the experts, the same shape.
      places: C, of every expert for every sequence.
      dtype: of the result.
    """
    # Places are counted from one, in the order of the sequence: those not sent there have place
    # zero, which like one beyond the capacity becomes a row of zeros.
    place = sent * jnp.cumsum(sent, axis=1)
    dispatch = jax.nn.one_hot(place - 1, places, dtype=jnp.float32)
    return Routing(dispatch.astype(dtype), (dispatch * weights[..., None]).astype(dtype))


def experts(x: jax.Array, routing: Routing, layer: Weights) -> jax.Array:
    """SwiGLU experts `w_gate`, `w_up` and `w_down`, `[B, S, D] -> [B, S, D]`."""
    taken = jnp.einsum("bsec,bsd->becd", routing.dispatch, x)
    hidden = jax.nn.silu(dense("becd,edf->becf", taken, layer["w_gate"]))
    hidden = hidden * dense("becd,edf->becf", taken, layer["w_up"])
    out = dense("becf,efd->becd", hidden, layer["w_down"])
    return jnp.einsum("bsec,becd->bsd", routing.combine, out)


def balance(sent: jax.Array, shares: jax.Array, top: int) -> jax.Array:
    """The load-balance loss of a layer, a scalar: one where the load is even.

    Args:
      sent: `[B, S, E]`: one where a token goes to an expert.
      shares: the router's probabilities, the same shape.
      top: experts of a token.
    """
    load = jnp.mean(sent.astype(jnp.float32), axis=(0, 1)) / top
    return shares.shape[-1] * jnp.sum(load * jnp.mean(shares, axis=(0, 1)))
