"""A multi-layer perceptron and its Adam train step, in plain JAX and Optax.

Shape legend: B batch, I input, H hidden, O output.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import training

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class MLPConfig:
    """Sizes of an MLP. All are numbers of elements; `dtype` is the compute type."""

    batch: int
    sizes: tuple[int, ...]
    """Width of the input, of every hidden layer, and of the output."""
    dtype: str = "float32"
    learning_rate: float = 1e-3


PRESETS = {
    "mlp": MLPConfig(128, (256, 1024, 256, 1024, 64)),
}


def init(config: MLPConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    widths = list(zip(config.sizes[:-1], config.sizes[1:], strict=True))
    keys = jax.random.split(key, len(widths))
    params = [
        {"w": jax.random.normal(k, shape) * shape[0] ** -0.5, "b": jnp.zeros(shape[1])}
        for k, shape in zip(keys, widths, strict=True)
    ]
    return training.state(params, config.learning_rate)


def loss(config: MLPConfig, params: list[Params], batch: Params) -> jax.Array:
    """Mean squared error of `batch['y']`, `[B, O]`, given `batch['x']`, `[B, I]`."""
    x = batch["x"].astype(config.dtype)
    for number, layer in enumerate(params):
        x = x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)
        if number < len(params) - 1:
            x = jax.nn.relu(x)
    return jnp.mean((x.astype(jnp.float32) - batch["y"]) ** 2)


def train_step(config: MLPConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: MLPConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    return {
        "x": jax.ShapeDtypeStruct((config.batch, config.sizes[0]), jnp.float32),
        "y": jax.ShapeDtypeStruct((config.batch, config.sizes[-1]), jnp.float32),
    }


def example_batch(config: MLPConfig, key: jax.Array) -> Params:
    """A batch of random numbers."""
    return training.example(abstract_batch(config), key)
