"""Greedy decoding with a decoder and a key/value cache, in plain JAX.

The prompt is read at once, which fills the cache; then a loop makes one token after another, each
from the last token and the cache. Attention is multi-head or multi-query, with rotary positions;
the layers are stacked, for `lax.scan`; the embedding is tied to the output projection. Parameters
are kept in `config.dtype`, as the cache is. What goes into attention and comes out of it has names
for tactics: `queries`, `keys`, `values` and `mixed`.

Shape legend: L layers, B batch, P prompt, S (and Q, of the queries) sequence, T cache length,
D embed, H heads, K head-dim, F ffn, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from partita.models.parts import layers, training
from partita.models.parts.feed_forward import Gated
from partita.models.parts.training import Input

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder and of what it decodes. All are numbers of elements."""

    layers: int
    batch: int
    prompt: int
    new: int
    """Tokens to generate."""
    embed: int
    heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    multi_query: bool = False
    """True if all query heads share one key/value head."""
    rope_theta: float = 10_000.0
    dtype: str = "bfloat16"

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return self.prompt + self.new


PRESETS = {
    "decode-tiny": DecoderConfig(2, 16, 16, 8, 64, 8, 8, 128, 512),
    "decode-mq-tiny": DecoderConfig(2, 16, 16, 8, 64, 8, 8, 128, 512, multi_query=True),
    "decode-7b": DecoderConfig(32, 64, 1024, 1024, 4096, 32, 128, 11008, 32000),
}


def init(config: DecoderConfig, key: jax.Array) -> Params:
    """The state: parameters, and a cache for the keys and values of every layer."""
    c = config
    layer_key, embed_key = jax.random.split(key)
    heads = () if c.multi_query else (c.heads,)
    cache = jnp.zeros((c.layers, c.batch, c.length, *heads, c.head_dim), c.dtype)
    layer = functools.partial(_init_layer, c)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)) * c.embed**-0.5,
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "ln_f": jnp.ones(c.embed),
    }
    params = jax.tree.map(lambda p: p.astype(c.dtype), params)
    return {"params": params, "cache": {"k": cache, "v": cache}}


def _init_layer(config: DecoderConfig, key: jax.Array) -> Params:
    """One layer: its nine parameter tensors."""
    c = config
    kv = (c.embed, c.head_dim) if c.multi_query else (c.embed, c.heads, c.head_dim)
    shapes: layers.Shapes = {
        "wq": ((c.embed, c.heads, c.head_dim), c.embed),
        "wk": (kv, c.embed),
        "wv": (kv, c.embed),
        "wo": ((c.heads, c.head_dim, c.embed), c.heads * c.head_dim),
    }
    shapes |= Gated(c.ffn).learned(c.embed).matrices
    return layers.matrices(key, shapes) | {"ln1": jnp.ones(c.embed), "ln2": jnp.ones(c.embed)}


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm over the embed dimension, computed in float32."""
    return layers.rms_normed(x).astype(x.dtype) * scale


def _attention(
    config: DecoderConfig, x: jax.Array, layer: Params, cache: Params, start: jax.Array | int
) -> tuple[jax.Array, Params]:
    """Causal self-attention of `x`, `[B, S, D]` from position `start` on, to the cache.

    Returns:
      The output, `[B, S, D]`, and the cache of the layer, `[B, T, ..., K]`, with `x` in it.
    """
    h = "" if config.multi_query else "h"
    position = start + jnp.arange(x.shape[1])
    q, k = (
        layers.rope(jnp.einsum(f"bsd,d{heads}k->bs{heads}k", x, w), config.rope_theta, position)
        for heads, w in (("h", layer["wq"]), (h, layer["wk"]))
    )
    v = jnp.einsum(f"bsd,d{h}k->bs{h}k", x, layer["wv"])
    q, k, v = (checkpoint_name(a, n) for a, n in ((q, "queries"), (k, "keys"), (v, "values")))
    k = jax.lax.dynamic_update_slice_in_dim(cache["k"], k, start, axis=1)
    v = jax.lax.dynamic_update_slice_in_dim(cache["v"], v, start, axis=1)
    scores = jnp.einsum(f"bqhk,bt{h}k->bhqt", q, k).astype(jnp.float32) * config.head_dim**-0.5
    causal = position[:, None] >= jnp.arange(config.length)[None, :]
    weights = layers.softmax(scores, causal, x.dtype)
    mixed = checkpoint_name(jnp.einsum(f"bhqt,bt{h}k->bqhk", weights, v), "mixed")
    return jnp.einsum("bqhk,hkd->bqd", mixed, layer["wo"]), {"k": k, "v": v}


def forward(
    config: DecoderConfig, params: Params, cache: Params, tokens: jax.Array, start: jax.Array | int
) -> tuple[Params, jax.Array]:
    """Reads tokens, `[B, S]`, from position `start` on: the new cache and the next token, `[B]`.

    It fills the cache from the prompt, and then decodes one token at a time.
    """

    ffn = Gated(config.ffn)

    def block(x: jax.Array, inputs: tuple[Params, Params]) -> tuple[jax.Array, Params]:
        layer, cache = inputs
        mixed, cache = _attention(config, _norm(x, layer["ln1"]), layer, cache, start)
        x = x + mixed
        return x + ffn(_norm(x, layer["ln2"]), layer)[0], cache

    x, cache = jax.lax.scan(block, params["embed"][tokens], (params["layers"], cache))
    last = _norm(x[:, -1], params["ln_f"])
    logits = jnp.einsum("bd,nd->bn", last, params["embed"]).astype(jnp.float32)
    return cache, jnp.argmax(logits, axis=-1).astype(jnp.int32)


def decode(config: DecoderConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """Continues `batch['tokens']`, int32 `[B, P]`: the state with the cache filled, and the
    tokens generated, `[B, new]`."""
    c, params = config, state["params"]
    cache, token = forward(c, params, state["cache"], batch["tokens"], 0)
    tokens = jnp.zeros((c.batch, c.new), jnp.int32)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], 0, axis=1)

    def step(number: jax.Array, carry: tuple[Params, jax.Array]) -> tuple[Params, jax.Array]:
        cache, tokens = carry
        last = jax.lax.dynamic_slice_in_dim(tokens, number - 1, 1, axis=1)
        cache, token = forward(c, params, cache, last, c.prompt + number - 1)
        return cache, jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], number, axis=1)

    cache, tokens = jax.lax.fori_loop(1, c.new, step, (cache, tokens))
    return {"params": params, "cache": cache}, tokens


def inputs(config: DecoderConfig) -> training.Inputs:
    """Prompts."""
    return {"tokens": Input((config.batch, config.prompt), config.vocabulary)}


MODEL = training.Definition(init, decode, inputs)
