"""A Gemma-style decoder and its Adam train step, in plain JAX and Optax.

Multi-query or multi-head attention with rotary positions, a GeGLU feed-forward, RMS norms whose
scale is learned as a difference from one, and an embedding that is scaled on the way in and tied
to the output projection.
"""

from __future__ import annotations

from partita.models import decoder
from partita.models.decoder import Decoder, Ends, Norms
from partita.models.parts.attention import Attention
from partita.models.parts.feed_forward import Gated, geglu
from partita.models.parts.layers import not_after, rms_norm_from_one

MODEL = decoder.MODEL


def _gemma(
    layers: int,
    sequence: int,
    embed: int,
    heads: tuple[int | None, int | None, int],
    ffn: int,
    vocabulary: int,
) -> Decoder:
    return Decoder(
        *(layers, 16, sequence, embed, vocabulary),
        Attention(*heads, mask=not_after),
        (Gated(ffn, geglu),),
        Norms(rms_norm_from_one, initial=0.0),
        Ends(tied=True, scaled=True),
    )


PRESETS = {
    "gemma-tiny": _gemma(2, 32, 64, (None, 8, 8), 128, 512),
    "gemma-2b": _gemma(18, 8192, 2048, (None, 8, 256), 16384, 256128),
    "gemma-7b": _gemma(28, 8192, 3072, (16, None, 256), 24576, 256128),
}
