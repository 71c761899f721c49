"""Layers that models share: products, norms, positions, masks, attention and feed-forwards.

Functions of arrays, which know nothing of how they are partitioned. Matrices are used in the type
of what they are multiplied with; norms, scores and routers compute in float32.

Shape legend: B batch, S (and Q, of the queries) sequence, D embed, H key/value heads, G query
heads per key/value head, K head-dim, V head-dim of the values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]
Shapes = dict[str, tuple[tuple[int, ...], int]]
"""Shape and fan-in of matrices, by name."""

Norm = Callable[[jax.Array, Any], jax.Array]
"""Function of what is normed and of what is learned for that: a scale, perhaps a bias."""

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

    def init(self, key: jax.Array, norm: Callable[[int], Any] = jnp.ones) -> Weights:
        """The parameters at first; `norm` makes those of a norm from its width."""
        norms = {name: norm(width) for name, width in self.norms.items()}
        return matrices(key, self.matrices) | self.others | norms


def zeros(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Arrays of zeros."""
    return {name: jnp.zeros(shape) for name, shape in shapes.items()}


def init_norm(width: int) -> Weights:
    """The scale and the bias of a norm at first."""
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


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


def rms_normed(x: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Root-mean-square norm over the last dimension without a scale, in float32."""
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Root-mean-square norm over the last dimension, computed in float32."""
    return (rms_normed(x, epsilon) * scale).astype(x.dtype)


def rms_norm_from_one(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm whose scale is learned as a difference from one."""
    return (rms_normed(x) * (1 + scale)).astype(x.dtype)


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


def attention_parameters(
    embed: int, heads: tuple[int, int], biases: str = "", context: int | None = None
) -> Learned:
    """Parameters of `attention`.

    Args:
      embed: width of what attends.
      heads: their number and width.
      biases: which matrices have one, of `qkvo`.
      context: width of what is attended to, where it is another one.
    """
    seen = context or embed
    zero = {"q": heads, "k": heads, "v": heads, "o": (embed,)}
    return Learned(
        {
            "wq": ((embed, *heads), embed),
            "wk": ((seen, *heads), seen),
            "wv": ((seen, *heads), seen),
            "wo": ((*heads, embed), math.prod(heads)),
        },
        zeros({f"b{name}": zero[name] for name in biases}),
    )


def attention(
    x: jax.Array, context: jax.Array, layer: Weights, mask: jax.Array | None = None
) -> jax.Array:
    """Attention of `x`, `[B, Q, D]`, to the context, `[B, S, E]`, which gives `[B, Q, D]`."""
    q = dense("bqd,dhk->bqhk", x, layer["wq"], layer.get("bq"))
    k = dense("bsd,dhk->bshk", context, layer["wk"], layer.get("bk"))
    v = dense("bsd,dhk->bshk", context, layer["wv"], layer.get("bv"))
    return dense("bqhk,hkd->bqd", attend(q, k, v, mask), layer["wo"], layer.get("bo"))


def feed_forward_parameters(embed: int, ffn: int, biases: bool = False) -> Learned:
    """Parameters of `feed_forward`."""
    matrices: Shapes = {"w_in": ((embed, ffn), embed), "w_out": ((ffn, embed), ffn)}
    return Learned(matrices, zeros({"b_in": (ffn,), "b_out": (embed,)} if biases else {}))


def feed_forward(
    x: jax.Array, layer: Weights, function: Callable[[jax.Array], jax.Array] = jax.nn.gelu
) -> jax.Array:
    """Two matrices around a function, `[B, S, D] -> [B, S, D]`."""
    hidden = function(dense("bsd,df->bsf", x, layer["w_in"], layer.get("b_in")))
    return dense("bsf,fd->bsd", hidden, layer["w_out"], layer.get("b_out"))


def init_perceptron(key: jax.Array, widths: Sequence[int]) -> list[Weights]:
    """A matrix and a bias from each width to the next."""
    shapes = list(itertools.pairwise(widths))
    return [
        {"w": jax.random.normal(k, shape) * shape[0] ** -0.5, "b": jnp.zeros(shape[1])}
        for k, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True)
    ]


def perceptron(x: jax.Array, layers: Sequence[Weights]) -> jax.Array:
    """Matrices and biases with ReLUs between them, over the last dimension."""
    for number, layer in enumerate(layers):
        x = x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return x
