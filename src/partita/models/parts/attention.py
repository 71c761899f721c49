"""Attention of decoders: grouped-query attention with what models add to it, and multi-head latent
attention.

Each is a data class of its sizes and options. It lists the parameters of a layer and is applied to
them.

Shape legend: B batch, S (and Q, of the queries) sequence, D embed, H key/value heads, G query heads
per key/value head, K head-dim of queries and keys, P head-dim with positions, V of values, R rank
of a latent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from partita.models.parts import layers
from partita.models.parts.layers import Learned, Norm, Weights


class Varying(NamedTuple):
    """Options that differ between layers which alternate, scanned over with their parameters."""

    window: jax.Array | None = None
    theta: jax.Array | None = None


class Mixing(Protocol):
    """A part of a layer that mixes positions, `[B, S, D] -> [B, S, D]`."""

    def learned(self, embed: int) -> Learned:
        """Parameters that a layer has for it."""

    def __call__(self, x: jax.Array, layer: Weights, norm: Norm, varying: Varying) -> jax.Array:
        """Applies it to the normed `x`."""


@dataclasses.dataclass(frozen=True)
class Alternation:
    """Two kinds of layers: every `period`-th, and those between. All are one loop body: a window
    masks scores and saves no time."""

    period: int
    first: int
    """Number of the first layer."""
    windows: tuple[int | None, int | None]
    """Last tokens that each kind sees, or None for all."""
    thetas: tuple[float, float] | None = None
    """Rotary base of each kind, if it is scanned over (Gemma 2 and 3)."""

    def varying(self, count: int, sequence: int) -> Varying:
        """The windows and rotary bases of all layers, `[L]`."""
        at = jnp.arange(self.first, self.first + count) % self.period == 0
        one, other = (sequence if seen is None else seen for seen in self.windows)
        window = jnp.where(at, one, other)
        return Varying(window, None if self.thetas is None else jnp.where(at, *self.thetas))


@dataclasses.dataclass(frozen=True)
class Attention:
    """Causal self-attention, `[B, S, D] -> [B, S, D]`; that of Llama, unless options say else."""

    kv_heads: int | None
    """Key/value heads, or None for one that all queries share (multi-query: Gemma 2B)."""
    group: int | None
    """Query heads that share a key/value head, or None where there is no such dimension
    (multi-head: GPT, Gemma 7B)."""
    head_dim: int
    v_dim: int | None = None
    """Head-dim of the values, where it is another one (GPT)."""
    theta: float | None = 10_000.0
    """Rotary base, or None for no positions (GPT)."""
    query_scale: float | None = None
    """Scores are divided by its root, where it is not the head-dim (Gemma 2 and 3)."""
    cap: float = 0.0
    """Limit that the size of scores tends to, or 0 for none (Gemma 2)."""
    qk_norm: Literal["each", "later"] | None = None
    """Norms of queries and keys: of each as soon as it is made (Qwen 3), or later, behind the
    values (Gemma 3)."""
    biases: bool = False
    """Biases of the four matrices (GPT-OSS)."""
    sinks: bool = False
    """One more, learned, score in the softmax of every head, without a value (GPT-OSS)."""
    mask: Callable[[int], jax.Array] = layers.causal
    """Causal mask without a window, which models write in several ways: by differences of
    positions, or by comparing them (GPT, Llama, Gemma, Mixtral)."""

    @property
    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Query heads, key/value heads, and head-dim of the values."""
        heads = tuple(n for n in (self.kv_heads, self.group) if n is not None)
        return heads, heads[:1] if self.kv_heads else (), self.v_dim or self.head_dim

    def learned(self, embed: int) -> Learned:
        """The four matrices; and biases, sinks and norms, if there are any."""
        heads, kv, v_dim = self._sizes
        columns = {"q": (*heads, self.head_dim), "k": (*kv, self.head_dim), "v": (*kv, v_dim)}
        zeros = {f"b{name}": shape for name, shape in (columns | {"o": (embed,)}).items()}
        zeros = (zeros if self.biases else {}) | ({"sinks": heads} if self.sinks else {})
        return Learned(
            {f"w{name}": ((embed, *shape), embed) for name, shape in columns.items()}
            | {"wo": ((*heads, v_dim, embed), math.prod(heads) * v_dim)},
            layers.zeros(zeros),
            dict.fromkeys(("ln_q", "ln_k"), self.head_dim) if self.qk_norm else {},
        )

    def __call__(self, x: jax.Array, layer: Weights, norm: Norm, varying: Varying) -> jax.Array:
        """Attends to the tokens before, with the layer's own window and rotary base."""
        h = "h" * (self.kv_heads is not None) + "g" * (self.group is not None)
        kv = h.replace("g", "")

        def project(name: str, heads: str) -> jax.Array:
            spec = f"bsd,d{heads}k->bs{heads}k"
            out = layers.dense(spec, x, layer[f"w{name}"], layer.get(f"b{name}"))
            each = self.qk_norm == "each" and name != "v"
            return norm(out, layer[f"ln_{name}"]) if each else out

        q, k, v = project("q", h), project("k", kv), project("v", kv)
        if self.qk_norm == "later":
            q, k = norm(q, layer["ln_q"]), norm(k, layer["ln_k"])
        theta = self.theta if varying.theta is None else varying.theta
        if theta is not None:
            q, k = layers.rope(q, theta), layers.rope(k, theta)
        scores = jnp.einsum(f"bq{h}k,bs{kv}k->b{h}qs", q, k).astype(jnp.float32)
        scores = layers.capped(scores * (self.query_scale or self.head_dim) ** -0.5, self.cap)
        window = varying.window
        mask = self.mask(x.shape[1]) if window is None else layers.causal(x.shape[1], window)
        if self.sinks:
            weights = _with_sinks(scores, mask, layer["sinks"]).astype(x.dtype)
        else:
            weights = layers.softmax(scores, mask, x.dtype)
        mixed = jnp.einsum(f"b{h}qs,bs{kv}v->bq{h}v", weights, v)
        return layers.dense(f"bq{h}v,{h}vd->bqd", mixed, layer["wo"], layer.get("bo"))


def _with_sinks(scores: jax.Array, mask: jax.Array, sinks: jax.Array) -> jax.Array:
    """A softmax over the keys and a sink, without a copy of the scores that has room for it."""
    scores = jnp.where(mask, scores, layers.MASKED)
    sink = sinks[None, ..., None, None]
    highest = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), sink))
    shares = jnp.exp(scores - highest)
    return shares / (jnp.sum(shares, axis=-1, keepdims=True) + jnp.exp(sink - highest))


@dataclasses.dataclass(frozen=True)
class LatentAttention:
    """Causal multi-head latent attention, `[B, S, D] -> [B, S, D]` (DeepSeek-V3): queries, keys and
    values of all heads come from narrow latents, and one rotary key is shared by all heads."""

    heads: int
    q_rank: int
    kv_rank: int
    head_dim: int
    """Width of queries and keys without positions."""
    rope_dim: int
    """Width with positions."""
    v_dim: int
    theta: float = 10_000.0

    def learned(self, embed: int) -> Learned:
        """Matrices to the latents and from there, and the norms of the latents."""
        heads, q_dim = self.heads, self.head_dim + self.rope_dim
        matrices: layers.Shapes = {
            "q_latent": ((embed, self.q_rank), embed),
            "wq": ((self.q_rank, heads, q_dim), self.q_rank),
            "kv_latent": ((embed, self.kv_rank), embed),
            "k_rope": ((embed, self.rope_dim), embed),
            "wk": ((self.kv_rank, heads, self.head_dim), self.kv_rank),
            "wv": ((self.kv_rank, heads, self.v_dim), self.kv_rank),
            "wo": ((heads, self.v_dim, embed), heads * self.v_dim),
        }
        return Learned(matrices, norms={"ln_q": self.q_rank, "ln_kv": self.kv_rank})

    def __call__(self, x: jax.Array, layer: Weights, norm: Norm, varying: Varying) -> jax.Array:
        """Attends to the tokens before."""
        q_latent = norm(layers.dense("bsd,dr->bsr", x, layer["q_latent"]), layer["ln_q"])
        q = layers.dense("bsr,rhk->bshk", q_latent, layer["wq"])
        q, q_rope = q[..., : self.head_dim], layers.rope(q[..., self.head_dim :], self.theta)
        kv_latent = norm(layers.dense("bsd,dr->bsr", x, layer["kv_latent"]), layer["ln_kv"])
        k = layers.dense("bsr,rhk->bshk", kv_latent, layer["wk"])
        v = layers.dense("bsr,rhv->bshv", kv_latent, layer["wv"])
        k_rope = layers.rope(layers.dense("bsd,dp->bsp", x, layer["k_rope"]), self.theta)
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k)
        scores = scores + jnp.einsum("bqhp,bsp->bhqs", q_rope, k_rope)
        scores = scores.astype(jnp.float32) * (self.head_dim + self.rope_dim) ** -0.5
        weights = layers.softmax(scores, layers.causal(x.shape[1]), x.dtype)
        mixed = jnp.einsum("bhqs,bshv->bqhv", weights, v)
        return layers.dense("bqhv,hvd->bqd", mixed, layer["wo"])
