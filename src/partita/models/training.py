"""Common parts of train steps: Adam, the loss of tokens, batches of tokens and images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


def optimizer(learning_rate: float) -> optax.GradientTransformation:
    """Adam. Epsilon is above the rounding noise of float32 gradients, so that two runs that sum
    in different orders take the same steps also where a gradient is almost zero."""
    return optax.adam(learning_rate, eps=1e-6)


def state(params: Any, learning_rate: float) -> Params:
    """The train state: parameters and Adam's state."""
    return {"params": params, "opt": optimizer(learning_rate).init(params)}


def step(
    loss: Callable[[Any], jax.Array], state: Params, learning_rate: float
) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(state["params"])
    updates, opt = optimizer(learning_rate).update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all but the last dimension of logits; targets are integers."""
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target)


def abstract_tokens(batch: int, sequence: int) -> Params:
    """Tokens, and the targets that come next, int32 `[B, S]`."""
    tokens = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def example(shapes: Params, key: jax.Array, below: dict[str, int] | None = None) -> Params:
    """A random batch of the shapes: normal values, or integers below a bound.

    Args:
      shapes: `ShapeDtypeStruct`s by name.
      key: of the random numbers.
      below: the bounds of integers, by name.
    """
    made: Params = {}
    for k, (name, leaf) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True):
        if below and name in below:
            made[name] = jax.random.randint(k, leaf.shape, 0, below[name])
        else:
            made[name] = jax.random.normal(k, leaf.shape, leaf.dtype)
    return made
