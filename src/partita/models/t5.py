"""An encoder-decoder (T5) and its Adam train step, in plain JAX and Optax.

The encoder reads the source; the decoder predicts the target from what precedes it and, by cross
attention, from the encoded source. Positions enter as a bias on the attention scores, by buckets
of relative distance, shared by the layers of a stack; scores are not scaled, the feed-forward is
a ReLU, and the embedding is tied to the output projection. The layers are stacked, for `lax.scan`
with rematerialization. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers (of each stack), B batch, S source sequence, T (and Q, of the queries)
target sequence, D embed, H heads, K head-dim, F ffn, R relative-position buckets, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers, stack, training
from partita.models.parts.layers import Learned
from partita.models.parts.training import Input

Params = dict[str, Any]

MAX_DISTANCE = 128
"""Distance from which on all share the last bucket."""


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Sizes of a T5. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    """Layers of the encoder, and of the decoder."""
    batch: int
    source: int
    target: int
    embed: int
    heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    buckets: int = 32
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


PRESETS = {
    "t5-tiny": T5Config(2, 16, 32, 16, 64, 8, 8, 128, 512),
    "t5-3b": T5Config(24, 128, 512, 128, 1024, 32, 128, 16384, 32128),
}


def init(config: T5Config, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    keys = jax.random.split(key, 3)
    attention = layers.attention_parameters(c.embed, (c.heads, c.head_dim))
    # The queries make up for the scale that the scores go without.
    queries: layers.Shapes = {"wq": ((c.embed, c.heads, c.head_dim), c.embed * c.head_dim)}
    attention = attention.joined(Learned(queries))
    ffn = layers.feed_forward_parameters(c.embed, c.ffn)

    def side(key: jax.Array, attentions: tuple[str, ...]) -> Params:
        layer_key, bias_key = jax.random.split(key)
        parts = dict.fromkeys(attentions, attention) | {"ffn": ffn}
        return {
            "layers": stack.init(layer_key, c.layers, parts, lambda: jnp.ones(c.embed)),
            "bias": jax.random.normal(bias_key, (c.heads, c.buckets)) * c.embed**-0.5,
            "ln_f": jnp.ones(c.embed),
        }

    return {
        "embed": jax.random.normal(keys[0], (c.vocabulary, c.embed)),
        "encoder": side(keys[1], ("self",)),
        "decoder": side(keys[2], ("self", "cross")),
    }


def _bias(table: jax.Array, sequence: int, causal: bool) -> jax.Array:
    """The bias of every key for every query, `[H, R] -> [H, Q, S]`, in float32.

    The first half of the buckets are for one distance each, the others for logarithmic ranges;
    where keys may follow the query, they have the second half of all buckets for their own.
    """
    after = jnp.arange(sequence)[None, :] - jnp.arange(sequence)[:, None]
    buckets = table.shape[1] if causal else table.shape[1] // 2
    distance = jnp.maximum(-after, 0) if causal else jnp.abs(after)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(MAX_DISTANCE / exact)
    far = jnp.minimum(exact + (ratio * (buckets - exact)).astype(jnp.int32), buckets - 1)
    bucket = jnp.where(distance < exact, distance, far)
    if causal:
        return jnp.where(after > 0, layers.MASKED, table[:, bucket])
    return table[:, bucket + jnp.where(after > 0, buckets, 0)]


def _attention(
    x: jax.Array, context: jax.Array, params: Params, bias: jax.Array | None = None
) -> jax.Array:
    """Attention of `x`, `[B, Q, D]`, to the context, `[B, S, D]`, which gives `[B, Q, D]`."""
    q = layers.dense("bqd,dhk->bqhk", x, params["wq"])
    k = layers.dense("bsd,dhk->bshk", context, params["wk"])
    v = layers.dense("bsd,dhk->bshk", context, params["wv"])
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32)
    if bias is not None:
        scores = scores + bias
    mixed = jnp.einsum("bhqs,bshk->bqhk", layers.softmax(scores, None, x.dtype), v)
    return layers.dense("bqhk,hkd->bqd", mixed, params["wo"])


def _side(x: jax.Array, source: jax.Array | None, params: Params) -> jax.Array:
    """The encoder, without a source, or the decoder of an encoded one, `[B, S, D] -> [B, S, D]`."""
    bias = _bias(params["bias"], x.shape[1], causal=source is not None)
    x = stack.apply(
        x,
        source,
        params["layers"],
        layers.rms_norm,
        lambda x, part: _attention(x, x, part, bias),
        _attention,
        functools.partial(layers.feed_forward, function=jax.nn.relu),
    )
    return layers.rms_norm(x, params["ln_f"])


def loss(config: T5Config, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['target']`, int32 `[B, T]`, given `batch['source']`, `[B, S]`.

    The decoder reads the target shifted by one, after a token 0.
    """
    embed = params["embed"].astype(config.dtype)
    source, target = batch["source"], batch["target"]
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)))
    encoded = _side(embed[source], None, params["encoder"])
    x = _side(embed[shifted], encoded, params["decoder"]) * config.embed**-0.5
    return training.cross_entropy(jnp.einsum("btd,nd->btn", x, embed), target)


def inputs(config: T5Config) -> training.Inputs:
    """Tokens of source and target."""
    c = config
    source, target = (Input((c.batch, length), c.vocabulary) for length in (c.source, c.target))
    return {"source": source, "target": target}


MODEL = training.trained(init, loss, inputs)
