"""Arguments drawn at random, for plans of functions that are known by their shapes alone."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.stablehlo.internals import random_key_type

WHOLE = 8
"""Exclusive upper bound of random integers: they may be indices, or powers."""


def drawn(tree: Any, seed: int, positive: bool = False) -> Any:
    """Arrays of the types of a pytree.

    Floats are normal, those of matrices divided by the square root of their rows, so that products
    neither vanish nor overflow.

    Args:
      tree: of `ShapeDtypeStruct`s.
      seed: other numbers for another seed.
      positive: whether to draw no negative floats, for functions that are not defined for them,
        such as the root of an optimizer's second moments.
    """
    leaves, structure = jax.tree.flatten(tree)
    made = [_drawn(leaf, [seed, number], positive) for number, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, made)


def _drawn(leaf: Any, seed: list[int], positive: bool) -> Any:
    rng, shape, dtype = np.random.default_rng(seed), leaf.shape, leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = jax.random.key(seed[0], impl=random_key_type(dtype))
        return jax.random.split(jax.random.fold_in(key, seed[1]), math.prod(shape)).reshape(shape)
    if jnp.issubdtype(dtype, jnp.bool_):
        return _weak(leaf, rng.integers(0, 2, shape).astype(bool))
    if jnp.issubdtype(dtype, jnp.integer):
        return _weak(leaf, rng.integers(0, WHOLE, shape).astype(dtype))
    numbers = rng.standard_normal(shape, np.float32)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        numbers = numbers + 1j * rng.standard_normal(shape, np.float32)
    elif positive or dtype == np.dtype(jnp.float8_e8m0fnu):  # which has no sign
        numbers = np.abs(numbers)
    scale = np.float32(max(1, shape[-2])) ** -0.5 if len(shape) > 1 else np.float32(1)
    return _weak(leaf, np.asarray(numbers * scale).astype(dtype))


def _weak(leaf: Any, array: np.ndarray) -> Any:
    """The number itself where the type is weak, as that of Python's numbers is."""
    return array.item() if getattr(leaf, "weak_type", False) and not leaf.shape else array
