"""A stack of layers whose parts have a norm each: attention, perhaps attention to a context, and a
feed-forward (T5, Whisper, the transformers of SDXL).

The layers are stacked, for `lax.scan` with rematerialization. Parameters of a layer are grouped by
part: `self`, `cross` and `ffn`, each with its norm, `ln`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from partita.models.parts import layers
from partita.models.parts.layers import Learned, Norm

Params = dict[str, Any]


def init(
    key: jax.Array, count: int, parts: Mapping[str, Learned], norm: Callable[[], Any]
) -> Params:
    """The parameters of all layers.

    Args:
      key: of the random numbers.
      count: of layers.
      parts: the parameters of each part, by `self`, `cross` and `ffn`.
      norm: makes the parameters of a norm.
    """

    def layer(key: jax.Array) -> Params:
        keys = jax.random.split(key, len(parts))
        return {
            name: part.init(k) | {"ln": norm()}
            for k, (name, part) in zip(keys, parts.items(), strict=True)
        }

    made: Params = jax.vmap(layer)(jax.random.split(key, count))
    return made


def apply(
    x: jax.Array,
    context: jax.Array | None,
    params: Params,
    norm: Norm,
    attend: Callable[[jax.Array, Params], jax.Array],
    cross: Callable[[jax.Array, jax.Array, Params], jax.Array] = layers.attention,
    feed_forward: Callable[[jax.Array, Params], jax.Array] = layers.feed_forward,
) -> jax.Array:
    """Applies the layers, `[B, S, D] -> [B, S, D]`.

    Args:
      x: what goes in.
      context: what layers with cross attention attend to; None for those without.
      params: those of all layers, as `init` makes them.
      norm: function of what is normed and of the parameters of a norm.
      attend: self-attention, of the normed tokens and its parameters.
      cross: attention to the context, of the normed tokens, the context and its parameters.
      feed_forward: the last part.
    """

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        x = x + attend(norm(x, layer["self"]["ln"]), layer["self"])
        if context is not None:
            x = x + cross(norm(x, layer["cross"]["ln"]), context, layer["cross"])
        return x + feed_forward(norm(x, layer["ffn"]["ln"]), layer["ffn"]), None

    return jax.lax.scan(block, x, params)[0]
