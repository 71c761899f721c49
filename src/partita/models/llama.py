"""A Llama-3-style decoder and its Adam train step, in plain JAX and Optax.

Grouped-query attention with rotary positions, a SwiGLU feed-forward, RMS norms, and an output
projection of its own. The layers are either stacked, for `lax.scan` with rematerialization, or
unrolled.
"""

from __future__ import annotations

import functools

from partita.models import decoder
from partita.models.decoder import Decoder, Norms
from partita.models.parts.attention import Attention
from partita.models.parts.feed_forward import Gated
from partita.models.parts.layers import not_after, rms_norm

MODEL = decoder.MODEL

NORMS = Norms(functools.partial(rms_norm, epsilon=1e-5))


def _llama(
    layers: int,
    sequence: int,
    embed: int,
    heads: tuple[int, int, int],
    ffn: int,
    vocabulary: int,
    scan: bool = True,
) -> Decoder:
    attention = Attention(*heads, theta=500_000.0, mask=not_after)
    sizes = (layers, 16, sequence, embed, vocabulary)
    return Decoder(*sizes, attention, (Gated(ffn),), NORMS, scan=scan)


# Table 3 of arXiv 2407.21783, and config.json of meta-llama/Llama-3.1-{8B,70B,405B}. How positions
# are scaled for long contexts, which changes no shape, is left out.
PRESETS = {
    "llama-tiny": _llama(2, 32, 64, (8, 2, 8), 128, 512),
    "llama-tiny-unrolled": _llama(2, 32, 64, (8, 2, 8), 128, 512, scan=False),
    "llama3-8b": _llama(32, 8192, 4096, (8, 4, 128), 14336, 128256),
    "llama3-70b": _llama(80, 8192, 8192, (8, 8, 128), 28672, 128256),
    "llama3-405b": _llama(126, 8192, 16384, (8, 16, 128), 53248, 128256),
}
