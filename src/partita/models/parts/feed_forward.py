"""Feed-forwards of decoders: two matrices, gated ones, and mixtures of experts.

Each is a data class of its sizes and options. It lists the parameters of a layer and is applied to
them: `[B, S, D] -> [B, S, D]`, and a load-balance loss, if there is one.

A mixture's router sends each token to its top experts, each with a fixed capacity per sequence (a
token beyond it skips the expert), by one-hot dispatch and combine tensors. The router computes in
float32. Families differ in how it chooses and weighs experts, and have a function each for that.

Shape legend: B batch, S sequence, D embed, E experts, C capacity, F ffn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from partita.models.parts import layers
from partita.models.parts.layers import Learned, Weights


class FeedForward(Protocol):
    """A part of a layer that works on every position alone, `[B, S, D] -> [B, S, D]`."""

    def learned(self, embed: int) -> Learned:
        """Parameters that a layer has for it."""

    def __call__(self, x: jax.Array, layer: Weights) -> tuple[jax.Array, jax.Array | None]:
        """Applies it to the normed `x`; also the load-balance loss of experts."""


Glu = Callable[[jax.Array, Callable[[], jax.Array]], jax.Array]
"""Function between the three matrices: of the gate, and of a function that multiplies by `up`."""


def swiglu(gate: jax.Array, up: Callable[[], jax.Array]) -> jax.Array:
    """Gates by SiLU."""
    return jax.nn.silu(gate) * up()


def swiglu_behind(gate: jax.Array, up: Callable[[], jax.Array]) -> jax.Array:
    """Gates by SiLU, computed behind both products."""
    hidden = up()
    return jax.nn.silu(gate) * hidden


def geglu(gate: jax.Array, up: Callable[[], jax.Array]) -> jax.Array:
    """Gates by GELU."""
    return jax.nn.gelu(gate) * up()


@dataclasses.dataclass(frozen=True)
class Plain:
    """Two matrices around a GELU (GPT)."""

    ffn: int

    def learned(self, embed: int) -> Learned:
        """Both matrices."""
        return layers.feed_forward_parameters(embed, self.ffn)

    def __call__(self, x: jax.Array, layer: Weights) -> tuple[jax.Array, None]:
        """Applies it."""
        return layers.feed_forward(x, layer), None


@dataclasses.dataclass(frozen=True)
class Gated:
    """A gated feed-forward (all but GPT), or an expert that sees every token (DeepSeek)."""

    ffn: int
    glu: Glu = swiglu
    """Gate: SiLU, or GELU (Gemma)."""
    name: str = "w"
    """First part of the names of its matrices: `shared` of a shared expert."""

    def learned(self, embed: int) -> Learned:
        """The three matrices."""
        return Learned(_three(self.name, (), embed, self.ffn))

    def __call__(self, x: jax.Array, layer: Weights) -> tuple[jax.Array, None]:
        """Applies it."""
        gate, up, down = (layer[f"{self.name}_{which}"] for which in ("gate", "up", "down"))
        hidden = self.glu(
            layers.dense("bsd,df->bsf", x, gate), lambda: layers.dense("bsd,df->bsf", x, up)
        )
        return layers.dense("bsf,fd->bsd", hidden, down), None


def _three(name: str, many: tuple[int, ...], embed: int, ffn: int) -> layers.Shapes:
    return {
        f"{name}_gate": ((*many, embed, ffn), embed),
        f"{name}_up": ((*many, embed, ffn), embed),
        f"{name}_down": ((*many, ffn, embed), ffn),
    }


class Routing(NamedTuple):
    """Experts and places that tokens go to."""

    dispatch: jax.Array
    """`[B, S, E, C]`: one where a token takes a place of an expert, else zero."""
    combine: jax.Array
    """The same, times the weight of the expert for the token."""
    balance: Callable[[], jax.Array | None]
    """Computes the load-balance loss, a scalar, if there is one."""


@dataclasses.dataclass(frozen=True)
class Experts:
    """A mixture of gated experts (Mixtral, DeepSeek, Qwen 3, GPT-OSS)."""

    experts: int
    top: int
    """Experts that a token is sent to."""
    ffn: int
    """Width of one expert."""
    router: Callable[[Experts, jax.Array, Weights], Routing]
    """Function that sends tokens to experts, such as `by_softmax`."""
    glu: Glu = swiglu
    """Gate; GPT-OSS clamps it."""
    biases: bool = False
    """Biases of the router and of the experts (GPT-OSS)."""
    choice_bias: bool = False
    """Bias in the choice of experts only (DeepSeek-V3): it balances the load, has no gradient, and
    is not changed here."""
    capacity_factor: float = 1.25
    """Capacity of an expert, relative to an even load."""

    def learned(self, embed: int) -> Learned:
        """The router's matrix, three of each expert, and biases."""
        many = (self.experts,)
        matrices: layers.Shapes = {"router": ((embed, self.experts), embed)}
        biases = {
            "b_router": many,
            "b_gate": (*many, self.ffn),
            "b_up": (*many, self.ffn),
            "b_down": (*many, embed),
        }
        zeros = (biases if self.biases else {}) | ({"balance": many} if self.choice_bias else {})
        return Learned(matrices | _three("w", many, embed, self.ffn), layers.zeros(zeros))

    def __call__(self, x: jax.Array, layer: Weights) -> tuple[jax.Array, jax.Array | None]:
        """Applies it."""

        def product(spec: str, x: jax.Array, name: str) -> jax.Array:
            bias = layer.get(f"b_{name}")
            each = None if bias is None else bias[:, None, :]
            return layers.dense(spec, x, layer[f"w_{name}"], each)

        routing = self.router(self, x, layer)
        taken = jnp.einsum("bsec,bsd->becd", routing.dispatch, x)
        hidden = self.glu(
            product("becd,edf->becf", taken, "gate"),
            lambda: product("becd,edf->becf", taken, "up"),
        )
        out = product("becf,efd->becd", hidden, "down")
        mixed = jnp.einsum("bsec,becd->bsd", routing.combine, out)
        return mixed, routing.balance()


def logits(x: jax.Array, layer: Weights) -> jax.Array:
    """The router's scores, `[B, S, E]`."""
    out = jnp.einsum("bsd,de->bse", x.astype(jnp.float32), layer["router"])
    return out + layer["b_router"] if "b_router" in layer else out


def chosen(scores: jax.Array, top: int) -> jax.Array:
    """One for the `top` largest of the last dimension, else zero, int32."""
    _, indices = jax.lax.top_k(jax.lax.stop_gradient(scores), top)
    return jax.nn.one_hot(indices, scores.shape[-1], dtype=jnp.int32).sum(axis=-2)


def places(experts: Experts, sent: jax.Array) -> jax.Array:
    """The place that a token takes of an expert, `[B, S, E, C]`, as one among zeros; tokens beyond
    the capacity of an expert take none.

    Args:
      experts: how many there are, and their capacity.
      sent: `[B, S, E]`, int32: one where a token goes to an expert.
    """
    load = experts.capacity_factor * sent.shape[1] * experts.top / experts.experts
    # Places are counted from one, in the order of the sequence: those not sent there have place
    # zero, which like one beyond the capacity becomes a row of zeros.
    place = sent * jnp.cumsum(sent, axis=1)
    return jax.nn.one_hot(place - 1, math.ceil(load), dtype=jnp.float32)


def balance(experts: Experts, sent: jax.Array, shares: jax.Array) -> jax.Array:
    """The load-balance loss of a layer, a scalar: one where the load is even.

    Args:
      experts: how many there are, and how many a token is sent to.
      sent: `[B, S, E]`: one where a token goes to an expert.
      shares: the router's probabilities, the same shape.
    """
    load = jnp.mean(sent.astype(jnp.float32), axis=(0, 1)) / experts.top
    return shares.shape[-1] * jnp.sum(load * jnp.mean(shares, axis=(0, 1)))


def routed(
    experts: Experts,
    sent: jax.Array,
    weights: jax.Array,
    dtype: jnp.dtype,
    balance: Callable[[], jax.Array | None] = lambda: None,
) -> Routing:
    """The routing of tokens that are sent to experts, with the experts' weights, `[B, S, E]`."""
    taken = places(experts, sent)
    return Routing(taken.astype(dtype), (taken * weights[..., None]).astype(dtype), balance)


def by_softmax(experts: Experts, x: jax.Array, layer: Weights) -> Routing:
    """Routes to the largest shares of a softmax, scaled to sum to one (Qwen 3)."""
    shares, sent = softmax_choice(experts, x, layer)
    weights = shares * sent
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return routed(experts, sent, weights, x.dtype, lambda: balance(experts, sent, shares))


def softmax_choice(experts: Experts, x: jax.Array, layer: Weights) -> tuple[jax.Array, jax.Array]:
    """The shares of all experts, and one where a token goes to an expert, `[B, S, E]`."""
    shares = jax.nn.softmax(logits(x, layer), axis=-1)
    return shares, chosen(shares, experts.top)
