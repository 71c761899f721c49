"""GPT-OSS, a mixture of experts, and its Adam train step, in plain JAX and Optax.

Grouped-query attention with rotary positions, whose softmax has one more, learned, score per head
(a sink, which takes weight and has no value); every other layer sees a window of the last tokens.
Every feed-forward is a mixture of experts, whose gate is clamped. All matrices but embedding and
output have biases.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from partita.models import decoder
from partita.models.decoder import Decoder
from partita.models.llama import NORMS
from partita.models.parts.attention import Alternation, Attention
from partita.models.parts.feed_forward import Experts, Routing, balance, chosen, logits, routed
from partita.models.parts.layers import MASKED, Weights

MODEL = decoder.MODEL

SHARPNESS, LIMIT = 1.702, 7.0
"""Constants of the gate: x times the logistic of 1.702 x, with gate and up clamped to the limit."""


def _clamped(gate: jax.Array, up: Callable[[], jax.Array]) -> jax.Array:
    """Gates by a logistic function; gate and up are clamped."""
    hidden = up()
    gate, hidden = jnp.minimum(gate, LIMIT), jnp.clip(hidden, -LIMIT, LIMIT)
    return gate * jax.nn.sigmoid(SHARPNESS * gate) * (hidden + 1)


def _router(experts: Experts, x: jax.Array, layer: Weights) -> Routing:
    """Routes to the largest scores, and weighs by a softmax over those."""
    scores = logits(x, layer)
    sent = chosen(scores, experts.top)
    weights = jax.nn.softmax(jnp.where(sent == 1, scores, MASKED), axis=-1)

    def load() -> jax.Array:
        return balance(experts, sent, jax.nn.softmax(scores, axis=-1))

    return routed(experts, sent, weights, x.dtype, load)


def _gpt_oss(
    layers: int,
    sequence: int,
    embed: int,
    heads: tuple[int, int, int],
    experts: tuple[int, int, int],
    vocabulary: int,
    window: int,
    capacity_factor: float = 1.25,
) -> Decoder:
    return Decoder(
        *(layers, 16, sequence, embed, vocabulary),
        Attention(*heads, theta=150_000.0, biases=True, sinks=True),
        (Experts(*experts, _router, _clamped, biases=True, capacity_factor=capacity_factor),),
        NORMS,
        alternation=Alternation(2, 0, (window, None)),
        balance=0.01,
    )


# Table 1 of arXiv 2508.10925 (the model card), and config.json of openai/gpt-oss-{20b,120b}. How
# it was trained, and so a load-balance loss, is not published.
PRESETS = {
    "gpt-oss-tiny": _gpt_oss(2, 32, 64, (4, 2, 8), (8, 2, 64), 512, 8, 1.0),
    "gpt-oss-20b": _gpt_oss(24, 8192, 2880, (8, 8, 64), (32, 4, 2880), 201_088, 128),
    "gpt-oss-120b": _gpt_oss(36, 8192, 2880, (8, 8, 64), (128, 4, 2880), 201_088, 128),
}
