"""What a model defines, and train steps: Adam, losses, batches of random inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Input:
    """One array of a batch: of float32, or of int32 if it has a bound."""

    shape: tuple[int, ...]
    below: int | None = None
    """Exclusive bound of integers; None for floats."""
    uniform: bool = False
    """Floats evenly between 0 and 1 (times), rather than normal ones."""

    @property
    def abstract(self) -> jax.ShapeDtypeStruct:
        """Shape and type alone."""
        return jax.ShapeDtypeStruct(self.shape, jnp.float32 if self.below is None else jnp.int32)

    def example(self, key: jax.Array) -> jax.Array:
        """Random elements."""
        if self.below is not None:
            return jax.random.randint(key, self.shape, 0, self.below)
        draw = jax.random.uniform if self.uniform else jax.random.normal
        return draw(key, self.shape)


Inputs = dict[str, Input]


@dataclasses.dataclass(frozen=True)
class Definition:
    """A model of any size. Its functions take a configuration first."""

    init: Callable[[Any, jax.Array], Params]
    """The state at first, from a random key."""
    step: Callable[[Any, Params, Params], tuple[Params, jax.Array]]
    """The function to plan: from state and batch, the new state and a result."""
    inputs: Callable[[Any], Inputs]
    """The arrays of a batch."""

    def abstract_batch(self, config: Any) -> Params:
        """The batch as `ShapeDtypeStruct`s."""
        return {name: each.abstract for name, each in self.inputs(config).items()}

    def example_batch(self, config: Any, key: jax.Array) -> Params:
        """A random batch."""
        inputs = self.inputs(config)
        keys = jax.random.split(key, len(inputs))
        return {n: each.example(k) for k, (n, each) in zip(keys, inputs.items(), strict=True)}


def trained(
    params: Callable[[Any, jax.Array], Any],
    loss: Callable[[Any, Any, Params], jax.Array],
    inputs: Callable[[Any], Inputs],
) -> Definition:
    """A model that is trained with Adam, at the `learning_rate` of its configuration.

    Args:
      params: the parameters at first, from a random key.
      loss: of parameters and a batch, a scalar.
      inputs: the arrays of a batch.
    """

    def init(config: Any, key: jax.Array) -> Params:
        return state(params(config, key), config.learning_rate)

    def train_step(config: Any, state: Params, batch: Params) -> tuple[Params, jax.Array]:
        before = state["params"]
        value, gradients = jax.value_and_grad(lambda p: loss(config, p, batch))(before)
        updates, opt = optimizer(config.learning_rate).update(gradients, state["opt"], before)
        return {"params": optax.apply_updates(before, updates), "opt": opt}, value

    return Definition(init, train_step, inputs)


def optimizer(learning_rate: float) -> optax.GradientTransformation:
    """Adam. Epsilon is above the rounding noise of float32 gradients, so that two runs that sum
    in different orders take the same steps also where a gradient is almost zero."""
    return optax.adam(learning_rate, eps=1e-6)


def state(params: Any, learning_rate: float) -> Params:
    """The train state: parameters and Adam's state."""
    return {"params": params, "opt": optimizer(learning_rate).init(params)}


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all but the last dimension of logits; targets are integers."""
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - at_target)


def squared_error(found: jax.Array, wanted: jax.Array) -> jax.Array:
    """The mean over all elements; `wanted` is float32."""
    error: jax.Array = jnp.mean((found.astype(jnp.float32) - wanted) ** 2)
    return error


def noisy(clean: jax.Array, batch: Params) -> jax.Array:
    """Pictures `[B, Y, X, C]` mixed with `batch['noise']` on a cosine schedule, at times `[B]` in
    the range 0 (no noise) to 1."""
    angle = batch["time"][:, None, None, None] * (jnp.pi / 2)
    mixed: jax.Array = jnp.cos(angle) * clean + jnp.sin(angle) * batch["noise"]
    return mixed


def token_inputs(batch: int, sequence: int, vocabulary: int) -> Inputs:
    """Tokens, and the targets that come next, int32 `[B, S]`."""
    return dict.fromkeys(("tokens", "targets"), Input((batch, sequence), vocabulary))


def image_inputs(batch: int, image: int, channels: int, classes: int) -> Inputs:
    """Images `[B, Y, X, C]`, and their labels, int32 `[B]`."""
    return {
        "images": Input((batch, image, image, channels)),
        "labels": Input((batch,), classes),
    }
