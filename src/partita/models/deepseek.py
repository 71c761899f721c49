"""A decoder like DeepSeek-V3 and its Adam train step, in plain JAX and Optax.

Multi-head latent attention. Behind a few dense layers, every feed-forward is a mixture of experts
and a shared expert: logistic scores, of which the best groups of experts, and of those the best
experts, are taken. A bias that balances the load takes part in the choice only. There is no
multi-token prediction.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from partita.models import decoder
from partita.models.decoder import Decoder, Leading
from partita.models.parts.attention import LatentAttention
from partita.models.parts.feed_forward import Experts, Gated, Routing, chosen, logits, routed
from partita.models.parts.layers import Weights

MODEL = decoder.MODEL

SCALE = 2.5
"""Sum of the weights of a token's experts."""


def _router(groups: int, top: int, experts: Experts, x: jax.Array, layer: Weights) -> Routing:
    """Routes to experts of the `top` groups whose two best experts sum highest."""
    scores = jax.nn.sigmoid(logits(x, layer))
    biased = jax.lax.stop_gradient(scores + layer["balance"])
    grouped = biased.reshape(*biased.shape[:-1], groups, -1)
    best = jax.lax.top_k(grouped, 2)[0].sum(axis=-1)
    allowed = chosen(best, top)[..., None] == 1
    sent = chosen(jnp.where(allowed, grouped, 0.0).reshape(biased.shape), experts.top)
    weights = scores * sent
    weights = SCALE * weights / jnp.sum(weights, axis=-1, keepdims=True)
    return routed(experts, sent, weights, x.dtype)


# Section 4.2 of arXiv 2412.19437, and config.json of deepseek-ai/DeepSeek-V3.
PRESETS = {
    "deepseek-tiny": Decoder(
        *(2, 16, 32, 64, 512),
        LatentAttention(heads=8, q_rank=32, kv_rank=16, head_dim=8, rope_dim=4, v_dim=8),
        (
            Gated(64, name="shared"),
            Experts(
                *(8, 2, 64),
                functools.partial(_router, 4, 2),
                choice_bias=True,
                capacity_factor=1.0,
            ),
        ),
        leading=Leading(1, (Gated(128),)),
    ),
    "deepseek-v3": Decoder(
        *(58, 64, 4096, 7168, 129_280),
        LatentAttention(heads=128, q_rank=1536, kv_rank=512, head_dim=128, rope_dim=64, v_dim=128),
        (
            Gated(2048, name="shared"),
            Experts(256, 8, 2048, functools.partial(_router, 8, 4), choice_bias=True),
        ),
        leading=Leading(3, (Gated(18432),)),
    ),
}
