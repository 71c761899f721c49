"""A mixture-of-experts decoder, as Mixtral and DeepSeekMoE, and its Adam train step.

Every feed-forward is a mixture of experts with a loss that balances their load; some models add a
shared expert that sees every token. The rest of the layer is Llama's. (DeepSeekMoE's first layer,
dense there, is a mixture here.)
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from partita.models import decoder
from partita.models.decoder import Decoder
from partita.models.llama import NORMS
from partita.models.parts.attention import Attention
from partita.models.parts.feed_forward import (
    Experts,
    Gated,
    Routing,
    balance,
    places,
    softmax_choice,
    swiglu_behind,
)
from partita.models.parts.layers import Weights, not_after

MODEL = decoder.MODEL


def _router(normalize: bool, experts: Experts, x: jax.Array, layer: Weights) -> Routing:
    """Routes to the largest shares of a softmax, scaled to sum to one or not."""
    shares, sent = softmax_choice(experts, x, layer)
    weights = shares * sent
    if normalize:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    dispatch = places(experts, sent)
    combine = dispatch * weights[..., None]
    load = balance(experts, sent, shares)
    return Routing(dispatch.astype(x.dtype), combine.astype(x.dtype), lambda: load)


def _moe(
    layers: int,
    sequence: int,
    embed: int,
    heads: tuple[int, int, int],
    experts: tuple[int, int, int],
    vocabulary: int,
    theta: float = 10_000.0,
    shared_ffn: int = 0,
    normalize: bool = True,
    capacity_factor: float = 1.25,
) -> Decoder:
    router = functools.partial(_router, normalize)
    mixture = Experts(*experts, router, swiglu_behind, capacity_factor=capacity_factor)
    shared = (Gated(shared_ffn, swiglu_behind, "shared"),) if shared_ffn else ()
    sizes = (layers, 16, sequence, embed, vocabulary)
    attention = Attention(*heads, theta=theta, mask=not_after)
    return Decoder(*sizes, attention, (mixture, *shared), NORMS, balance=0.01)


# arXiv 2401.04088 and config.json of mistralai/Mixtral-{8x7B,8x22B}-v0.1; arXiv 2401.06066.
PRESETS = {
    "moe-tiny": _moe(2, 32, 64, (8, 2, 8), (8, 2, 64), 512, shared_ffn=128, capacity_factor=1.0),
    "mixtral-8x7b": _moe(32, 4096, 4096, (8, 4, 128), (8, 2, 14336), 32000, 1_000_000.0),
    "mixtral-8x22b": _moe(56, 4096, 6144, (8, 6, 128), (8, 2, 16384), 32000, 1_000_000.0),
    "deepseek-moe-16b": _moe(
        28, 4096, 2048, (16, 1, 128), (64, 6, 1408), 102400, shared_ffn=2816, normalize=False
    ),
}
