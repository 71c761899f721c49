"""Gemma 2 and Gemma 3 and their Adam train step, in plain JAX and Optax.

Grouped-query attention whose layers see a window of the last tokens, but for every second (Gemma
2) or sixth (Gemma 3), which see all; norms before and behind both parts of a layer; GeGLU. Gemma 2
caps scores and logits, Gemma 3 norms queries and keys. The embedding is scaled and tied, as
Gemma's.
"""

from __future__ import annotations

import jax

from partita.models import decoder
from partita.models.decoder import Decoder, Ends, Norms
from partita.models.parts.attention import Alternation, Attention
from partita.models.parts.feed_forward import Gated, geglu
from partita.models.parts.layers import rms_norm

MODEL = decoder.MODEL


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Norms, with a scale that is learned as a difference from one."""
    return rms_norm(x, 1 + scale)


def _decoder(
    layers: int,
    sequence: int,
    embed: int,
    attention: Attention,
    ffn: int,
    vocabulary: int,
    alternation: Alternation,
    cap: float = 0.0,
) -> Decoder:
    return Decoder(
        *(layers, 16, sequence, embed, vocabulary),
        attention,
        (Gated(ffn, geglu),),
        Norms(_norm, initial=0.0, behind=True),
        Ends(tied=True, scaled=True, cap=cap),
        alternation=alternation,
    )


def _gemma2(
    layers: int,
    embed: int,
    heads: tuple[int, int, int],
    ffn: int,
    query_scale: float,
    sequence: int = 8192,
    vocabulary: int = 256_000,
    window: int = 4096,
) -> Decoder:
    attention = Attention(*heads, query_scale=query_scale, cap=50.0)
    alternation = Alternation(2, 1, (None, window), (10_000.0, 10_000.0))
    sizes = (layers, sequence, embed, attention, ffn, vocabulary)
    return _decoder(*sizes, alternation, cap=30.0)


def _gemma3(
    layers: int,
    embed: int,
    heads: tuple[int, int, int],
    ffn: int,
    query_scale: float = 256,
    sequence: int = 8192,
    vocabulary: int = 262_208,
    window: int = 1024,
    period: int = 6,
) -> Decoder:
    attention = Attention(*heads, query_scale=query_scale, qk_norm="later")
    alternation = Alternation(period, 1, (None, window), (1e6, 10_000.0))
    return _decoder(layers, sequence, embed, attention, ffn, vocabulary, alternation)


# Gemma 2: table 1 of arXiv 2408.00118, and config.json of google/gemma-2-{2b,9b,27b} (head_dim,
# query_pre_attn_scalar, sliding_window, attn_logit_softcapping, final_logit_softcapping).
# Gemma 3: table 1 of arXiv 2503.19786, and the text_config of google/gemma-3-{1b,4b,12b,27b}-pt.
# The language models only; the vision encoder of Gemma 3 is not here.
PRESETS = {
    "gemma2-tiny": _gemma2(2, 64, (4, 2, 8), 128, 8, 32, 512, 8),
    "gemma2-2b": _gemma2(26, 2304, (4, 2, 256), 9216, 256),
    "gemma2-9b": _gemma2(42, 3584, (8, 2, 256), 14336, 256),
    "gemma2-27b": _gemma2(46, 4608, (16, 2, 128), 36864, 144),
    "gemma3-tiny": _gemma3(3, 64, (4, 2, 8), 128, 8, 32, 512, 8, 3),
    "gemma3-1b": _gemma3(26, 1152, (1, 4, 256), 6912, vocabulary=262_144, window=512),
    "gemma3-4b": _gemma3(34, 2560, (4, 2, 256), 10240),
    "gemma3-12b": _gemma3(48, 3840, (8, 2, 256), 15360),
    "gemma3-27b": _gemma3(62, 5376, (16, 2, 128), 21504, 168),
}
