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

from partita.models import layers, training

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
    """The train state: parameters (float32) and Adam's state."""
    c = config
    keys = jax.random.split(key, 4)

    def stack(key: jax.Array, attentions: tuple[str, ...]) -> Params:
        layer = functools.partial(_init_layer, c, attentions)
        return {"layers": jax.vmap(layer)(jax.random.split(key, c.layers)), "ln_f": _norm(c)}

    convolutions: layers.Shapes = {
        "conv1": ((WINDOW, c.mels, c.embed), WINDOW * c.mels),
        "conv2": ((WINDOW, c.embed, c.embed), WINDOW * c.embed),
    }
    tables: layers.Shapes = {
        "embed": ((c.vocabulary, c.embed), c.embed),
        "position": ((c.text, c.embed), c.embed),
    }
    params = {
        **layers.matrices(keys[0], convolutions),
        "b_conv1": jnp.zeros(c.embed),
        "b_conv2": jnp.zeros(c.embed),
        "encoder": stack(keys[1], ("self",)),
        **layers.matrices(keys[2], tables),
        "decoder": stack(keys[3], ("self", "cross")),
    }
    return training.state(params, c.learning_rate)


def _norm(config: WhisperConfig) -> Params:
    return {"scale": jnp.ones(config.embed), "bias": jnp.zeros(config.embed)}


def _init_layer(config: WhisperConfig, attentions: tuple[str, ...], key: jax.Array) -> Params:
    """One layer: its attentions and its feed-forward, each with its norm."""
    c = config
    heads, ffn = (c.heads, c.head_dim), 4 * c.embed
    shapes: layers.Shapes = {
        "wq": ((c.embed, *heads), c.embed),
        "wk": ((c.embed, *heads), c.embed),
        "wv": ((c.embed, *heads), c.embed),
        "wo": ((*heads, c.embed), c.embed),
    }
    biases = {"bq": heads, "bv": heads, "bo": (c.embed,)}
    *attention_keys, ffn_key = jax.random.split(key, len(attentions) + 1)
    params = {
        name: layers.matrices(k, shapes)
        | {bias: jnp.zeros(shape) for bias, shape in biases.items()}
        | {"ln": _norm(c)}
        for name, k in zip(attentions, attention_keys, strict=True)
    }
    matrices: layers.Shapes = {"w_in": ((c.embed, ffn), c.embed), "w_out": ((ffn, c.embed), ffn)}
    return params | {
        "ffn": layers.matrices(ffn_key, matrices)
        | {"b_in": jnp.zeros(ffn), "b_out": jnp.zeros(c.embed), "ln": _norm(c)}
    }


def _convolution(x: jax.Array, w: jax.Array, bias: jax.Array, stride: int) -> jax.Array:
    """A convolution over time and a GELU, `[B, A, C] -> [B, A / stride, D]`."""
    layout = ("NWC", "WIO", "NWC")
    w = w.astype(x.dtype)
    # A frame on both sides, with a stride, too; where "SAME" would put one behind only.
    x = jax.lax.conv_general_dilated(x, w, (stride,), [(1, 1)], dimension_numbers=layout)
    return jax.nn.gelu(x + bias.astype(x.dtype))


def _attention(
    x: jax.Array, context: jax.Array, params: Params, mask: jax.Array | None = None
) -> jax.Array:
    """Attention of `x`, `[B, Q, D]`, to the context, `[B, S, D]`, which gives `[B, Q, D]`."""
    q = layers.dense("bqd,dhk->bqhk", x, params["wq"], params["bq"])
    k = layers.dense("bsd,dhk->bshk", context, params["wk"])
    v = layers.dense("bsd,dhk->bshk", context, params["wv"], params["bv"])
    return layers.dense("bqhk,hkd->bqd", layers.attend(q, k, v, mask), params["wo"], params["bo"])


def _ffn(x: jax.Array, params: Params) -> jax.Array:
    """Two matrices around a GELU, `[B, S, D] -> [B, S, D]`."""
    hidden = jax.nn.gelu(layers.dense("bsd,df->bsf", x, params["w_in"], params["b_in"]))
    return layers.dense("bsf,fd->bsd", hidden, params["w_out"], params["b_out"])


def _stack(x: jax.Array, sound: jax.Array | None, params: Params) -> jax.Array:
    """The encoder, without a sound, or the decoder of an encoded one, `[B, S, D] -> [B, S, D]`."""
    mask = None if sound is None else layers.causal(x.shape[1])

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        normed = layers.layer_norm(x, layer["self"]["ln"], 1e-5)
        x = x + _attention(normed, normed, layer["self"], mask)
        if sound is not None:
            normed = layers.layer_norm(x, layer["cross"]["ln"], 1e-5)
            x = x + _attention(normed, sound, layer["cross"])
        return x + _ffn(layers.layer_norm(x, layer["ffn"]["ln"], 1e-5), layer["ffn"]), None

    x, _ = jax.lax.scan(block, x, params["layers"])
    return layers.layer_norm(x, params["ln_f"], 1e-5)


def loss(config: WhisperConfig, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, T]`, and
    the spectrogram `batch['sound']`, `[B, 2 A, M]`."""
    x = batch["sound"].astype(config.dtype)
    x = _convolution(x, params["conv1"], params["b_conv1"], stride=1)
    x = _convolution(x, params["conv2"], params["b_conv2"], stride=2)
    x = x + layers.waves(jnp.arange(x.shape[1]), config.embed).astype(x.dtype)
    sound = _stack(x, None, params["encoder"])
    embed = params["embed"].astype(config.dtype)
    x = embed[batch["tokens"]] + params["position"].astype(config.dtype)
    x = _stack(x, sound, params["decoder"])
    logits = jnp.einsum("btd,nd->btn", x, embed)
    return training.cross_entropy(logits, batch["targets"])


def train_step(config: WhisperConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: WhisperConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    sound = jax.ShapeDtypeStruct((config.batch, 2 * config.audio, config.mels), jnp.float32)
    return {"sound": sound, **training.abstract_tokens(config.batch, config.text)}


def example_batch(config: WhisperConfig, key: jax.Array) -> Params:
    """A batch of random sounds and tokens."""
    bounds = dict.fromkeys(("tokens", "targets"), config.vocabulary)
    return training.example(abstract_batch(config), key, bounds)
