"""A GPT-style decoder with unrolled layers and its Adam train step, in plain JAX and Optax.

Multi-head attention and two matrices around a GELU; the embedding is tied to the output projection;
there is no positional embedding (the causal mask orders the tokens). Every layer has eight
parameter tensors.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from partita.models import decoder
from partita.models.decoder import Decoder, Ends
from partita.models.parts.attention import Attention
from partita.models.parts.feed_forward import Plain

MODEL = decoder.MODEL


def _causal(sequence: int) -> jax.Array:
    """The causal mask, which compares two lists of positions."""
    return jnp.arange(sequence)[:, None] >= jnp.arange(sequence)[None, :]


def _gpt(
    layers: int, batch: int, sequence: int, embed: int, heads: int, head_dim: int, vocabulary: int
) -> Decoder:
    attention = Attention(heads, None, head_dim, head_dim, theta=None, mask=_causal)
    sizes = (layers, batch, sequence, embed, vocabulary)
    return Decoder(*sizes, attention, (Plain(4 * embed),), ends=Ends(tied=True), scan=False)


PRESETS = {
    "gpt-tiny": _gpt(2, 16, 32, 64, 8, 8, 512),
    "gpt-small": _gpt(12, 32, 1024, 768, 12, 64, 50304),
    "gpt-24l": _gpt(24, 64, 1024, 2048, 16, 128, 50304),
    "gpt-175b": _gpt(96, 512, 2048, 12288, 96, 128, 50304),
}
