"""A multi-layer perceptron and its Adam train step, in plain JAX and Optax.

Shape legend: B batch, I input, H hidden, O output.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from partita.models.parts import layers, training
from partita.models.parts.training import Input

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


def init(config: MLPConfig, key: jax.Array) -> list[layers.Weights]:
    """The parameters (float32)."""
    return layers.init_perceptron(key, config.sizes)


def loss(config: MLPConfig, params: list[layers.Weights], batch: Params) -> jax.Array:
    """Mean squared error of `batch['y']`, `[B, O]`, given `batch['x']`, `[B, I]`."""
    x = layers.perceptron(batch["x"].astype(config.dtype), params)
    return training.squared_error(x, batch["y"])


def inputs(config: MLPConfig) -> training.Inputs:
    """Rows of inputs and of outputs."""
    x, y = ((config.batch, width) for width in (config.sizes[0], config.sizes[-1]))
    return {"x": Input(x), "y": Input(y)}


MODEL = training.trained(init, loss, inputs)
