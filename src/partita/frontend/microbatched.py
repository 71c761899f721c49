"""Splitting of a batch into micro-batches, each with examples of every device."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from partita.errors import SpecError

Tree = TypeVar("Tree")


def microbatched(tree: Tree, steps: int) -> Tree:
    """Every array as `[steps, B / steps, ...]`, for a loop over micro-batches.

    Micro-batch `k` has the examples `k`, `k + steps`, and so on: some of each device, which all
    stay where they are. `x.reshape(steps, B // steps, ...)` would give the first micro-batch the
    first `B / steps` examples, which are on few devices, so all have to move.

    Args:
      tree: arrays with the examples in dimension 0.
      steps: how many micro-batches to make.

    Raises:
      SpecError: `steps` does not divide the number of examples.

    Example:
      >>> import jax.numpy as jnp
      >>> microbatched(jnp.arange(6), 3).tolist()
      [[0, 3], [1, 4], [2, 5]]
    """

    def split(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path) or "the array"
        shape = jnp.shape(leaf)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise SpecError(f"steps={steps!r}: expected how many micro-batches to make, 1 or more")
        if not shape or shape[0] % steps:
            have = f"{shape[0]} examples" if shape else "no dimension"
            raise SpecError(
                f"{name} has {have}, which steps={steps} micro-batches cannot share equally"
            )
        return jnp.swapaxes(jnp.reshape(leaf, (shape[0] // steps, steps, *shape[1:])), 0, 1)

    made: Tree = jax.tree_util.tree_map_with_path(split, tree)
    return made
