"""A step of a decoder over a stack of caches, in the ways that people write it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

WAYS = ("stacked outputs", "carried, by layers", "carried, in place")


def decoder(
    way, *, scatter=False, steps=0, batch=128, heads=8, length=2048, groups=4, order="bthk"
):
    """A function that decodes one position with its cache, and its arguments; the cache is donated.

    Args:
      way: one of `WAYS`: a scan returns the layers that it has read, or carries the stack and reads
        and writes a layer of it, or puts what is new into the stack that it carries.
      scatter: whether what is new is scattered, every sequence at a position of its own.
      steps: of a loop around all layers, as of one that generates so many tokens; 0 for no loop.
      heads: of keys and values.
      length: of the cache.
      groups: queries for each of these heads.
      order: of the dimensions of a cache, in letters: batch, time, heads, and size of a key.
    """
    layers, size, width = 4, 128, 1024
    sizes = {"b": batch, "t": length, "h": heads, "k": size}
    at, new = order.index("t"), order.replace("t", "")

    def put(cache, update, position):
        if scatter:
            return cache.at[jnp.arange(batch), position].set(update)
        return lax.dynamic_update_slice_in_dim(cache, jnp.expand_dims(update, at), position, at)

    def put_in_stack(stack, layer, update, position):
        if scatter:
            return stack.at[layer, jnp.arange(batch), position].set(update)
        start = [layer, 0, 0, 0, 0]
        start[1 + at] = position
        return lax.dynamic_update_slice(stack, jnp.expand_dims(update, at)[None], start)

    def attend(x, w, cache):
        q = jnp.einsum("bd,dhgk->bhgk", x, w["q"])
        scores = jnp.einsum(f"bhgk,{order}->bhgt", q, cache).astype(jnp.float32)
        mixed = jnp.einsum(f"bhgt,{order}->bhgk", jax.nn.softmax(scores).astype(x.dtype), cache)
        return x + jnp.einsum("bhgk,hgkd->bd", mixed, w["o"])

    def projected(x, w):
        return jnp.einsum(f"bd,dhk->{new}", x, w["k"])

    def step(ws, caches, x, position):
        if way == "stacked outputs":

            def layer(x, inputs):
                w, cache = inputs
                cache = put(cache, projected(x, w), position)
                return attend(x, w, cache), cache

            x, caches = lax.scan(layer, x, (ws, caches))
            return caches, x

        def carried(carry, inputs):
            (x, caches), (w, number) = carry, inputs
            if way == "carried, by layers":
                cache = lax.dynamic_index_in_dim(caches, number, 0, keepdims=False)
                cache = put(cache, projected(x, w), position)
                caches = lax.dynamic_update_index_in_dim(caches, cache, number, 0)
            else:
                caches = put_in_stack(caches, number, projected(x, w), position)
                cache = lax.dynamic_index_in_dim(caches, number, 0, keepdims=False)
            return (attend(x, w, cache), caches), None

        (x, caches), _ = lax.scan(carried, (x, caches), (ws, jnp.arange(layers)))
        return caches, x

    def generate(ws, caches, x, position):
        def one(number, carry):
            return step(ws, *carry, position + number)

        return lax.fori_loop(0, steps, one, (caches, x))

    def bf16(*shape):
        return jax.ShapeDtypeStruct((layers, *shape), jnp.bfloat16)

    weights = {
        "q": bf16(width, heads, groups, size),
        "k": bf16(width, heads, size),
        "o": bf16(heads, groups, size, width),
    }
    x = jax.ShapeDtypeStruct((batch, width), jnp.bfloat16)
    position = jax.ShapeDtypeStruct((batch,) if scatter else (), jnp.int32)
    arguments = weights, bf16(*(sizes[letter] for letter in order)), x, position
    return (generate if steps else step), arguments
