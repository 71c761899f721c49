"""Whisper and its Adam train step, in plain JAX and Optax.

The encoder reads a spectrogram through two convolutions over time, the second with a stride of
two; the decoder predicts text from what precedes it and, by cross attention, from the encoded
sound. Positions are waves in the encoder and learned in the decoder; the feed-forward is a GELU,
keys have no bias, and the embedding is tied to the output projection. The layers of each stack are
scanned over, with rematerialization. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers (of each stack), B batch, A audio frames behind the convolutions, M mel
bands, T (and Q, of the queries) text, S what is attended to, D embed, H heads, K head-dim, F ffn,
N vocabulary, W window of a convolution.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers, stack, training
from partita.models.parts.training import Input

Params = dict[str, Any]

WINDOW = 3
"""Width of both convolutions."""


@dataclasses.dataclass(frozen=True)
class WhisperConfig:
    """Sizes of a Whisper. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    """Layers of the encoder, and of the decoder."""
    batch: int
    audio: int
    """Frames that the encoder attends to: half of those of the spectrogram."""
    mels: int
    text: int
    embed: int
    heads: int
    vocabulary: int
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.embed // self.heads


# Table 1 of arXiv 2212.04356, and the dimensions in openai/whisper-{tiny,small,large-v3}.
PRESETS = {
    "whisper-test": WhisperConfig(2, 16, 32, 16, 16, 64, 8, 512),
    "whisper-tiny": WhisperConfig(4, 256, 1500, 80, 448, 384, 6, 51865),
    "whisper-small": WhisperConfig(12, 256, 1500, 80, 448, 768, 12, 51865),
    "whisper-large-v3": WhisperConfig(32, 256, 1500, 128, 448, 1280, 20, 51866),
}


def init(config: WhisperConfig, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    keys = jax.random.split(key, 4)
    attention = layers.attention_parameters(c.embed, (c.heads, c.head_dim), "qvo")
    ffn = layers.feed_forward_parameters(c.embed, 4 * c.embed, biases=True)
    norm = functools.partial(layers.init_norm, c.embed)

    def side(key: jax.Array, attentions: tuple[str, ...]) -> Params:
        parts = dict.fromkeys(attentions, attention) | {"ffn": ffn}
        return {"layers": stack.init(key, c.layers, parts, norm), "ln_f": norm()}

    convolutions: layers.Shapes = {
        "conv1": ((WINDOW, c.mels, c.embed), WINDOW * c.mels),
        "conv2": ((WINDOW, c.embed, c.embed), WINDOW * c.embed),
    }
    tables: layers.Shapes = {
        "embed": ((c.vocabulary, c.embed), c.embed),
        "position": ((c.text, c.embed), c.embed),
    }
    return {
        **layers.matrices(keys[0], convolutions),
        **layers.zeros(dict.fromkeys(("b_conv1", "b_conv2"), (c.embed,))),
        "encoder": side(keys[1], ("self",)),
        **layers.matrices(keys[2], tables),
        "decoder": side(keys[3], ("self", "cross")),
    }


def _convolution(x: jax.Array, w: jax.Array, bias: jax.Array, stride: int) -> jax.Array:
    """A convolution over time and a GELU, `[B, A, C] -> [B, A / stride, D]`."""
    layout = ("NWC", "WIO", "NWC")
    w = w.astype(x.dtype)
    # A frame on both sides, with a stride, too; where "SAME" would put one behind only.
    x = jax.lax.conv_general_dilated(x, w, (stride,), [(1, 1)], dimension_numbers=layout)
    return jax.nn.gelu(x + bias.astype(x.dtype))


def _side(x: jax.Array, sound: jax.Array | None, params: Params) -> jax.Array:
    """The encoder, without a sound, or the decoder of an encoded one, `[B, S, D] -> [B, S, D]`."""
    mask = None if sound is None else layers.causal(x.shape[1])
    norm = functools.partial(layers.layer_norm, epsilon=1e-5)

    def attend(x: jax.Array, part: Params) -> jax.Array:
        return layers.attention(x, x, part, mask)

    x = stack.apply(x, sound, params["layers"], norm, attend)
    return norm(x, params["ln_f"])


def loss(config: WhisperConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, T]`, and
    the spectrogram `batch['sound']`, `[B, 2 A, M]`."""
    x = batch["sound"].astype(config.dtype)
    x = _convolution(x, params["conv1"], params["b_conv1"], stride=1)
    x = _convolution(x, params["conv2"], params["b_conv2"], stride=2)
    x = x + layers.waves(jnp.arange(x.shape[1]), config.embed).astype(x.dtype)
    sound = _side(x, None, params["encoder"])
    embed = params["embed"].astype(config.dtype)
    x = embed[batch["tokens"]] + params["position"].astype(config.dtype)
    x = _side(x, sound, params["decoder"])
    logits = jnp.einsum("btd,nd->btn", x, embed)
    return training.cross_entropy(logits, batch["targets"])


def inputs(config: WhisperConfig) -> training.Inputs:
    """Spectrograms, tokens and targets."""
    c = config
    sound = Input((c.batch, 2 * c.audio, c.mels))
    return {"sound": sound, **training.token_inputs(c.batch, c.text, c.vocabulary)}


MODEL = training.trained(init, loss, inputs)
