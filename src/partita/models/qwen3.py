"""Qwen 3, dense or a mixture of experts, and its Adam train step, in plain JAX and Optax.

Grouped-query attention with rotary positions and norms of every query and key; SwiGLU, or a
mixture of SwiGLU experts and a loss that balances their load.
"""

from __future__ import annotations

from partita.models import decoder
from partita.models.decoder import Decoder, Ends
from partita.models.parts.attention import Attention
from partita.models.parts.feed_forward import Experts, FeedForward, Gated, by_softmax

MODEL = decoder.MODEL


def _qwen3(
    layers: int,
    embed: int,
    heads: tuple[int, int, int],
    feed_forward: FeedForward,
    sequence: int = 8192,
    vocabulary: int = 151_936,
    tied: bool = False,
) -> Decoder:
    attention = Attention(*heads, theta=1_000_000.0, qk_norm="each")
    sizes = (layers, 16, sequence, embed, vocabulary)
    return Decoder(*sizes, attention, (feed_forward,), ends=Ends(tied), balance=0.001)


# Tables 1 and 2 of arXiv 2505.09388, and config.json of Qwen/Qwen3-{0.6B,8B,32B,30B-A3B,235B-A22B}.
PRESETS = {
    "qwen3-tiny": _qwen3(2, 64, (4, 2, 8), Gated(128), 32, 512),
    "qwen3-moe-tiny": _qwen3(
        2, 64, (4, 2, 8), Experts(8, 2, 64, by_softmax, capacity_factor=1.0), 32, 512
    ),
    "qwen3-0.6b": _qwen3(28, 1024, (8, 2, 128), Gated(3072), tied=True),
    "qwen3-8b": _qwen3(36, 4096, (8, 4, 128), Gated(12288)),
    "qwen3-32b": _qwen3(64, 5120, (8, 8, 128), Gated(25600)),
    "qwen3-30b-a3b": _qwen3(48, 2048, (4, 8, 128), Experts(128, 8, 768, by_softmax)),
    "qwen3-235b-a22b": _qwen3(94, 4096, (4, 16, 128), Experts(128, 8, 1536, by_softmax)),
}
