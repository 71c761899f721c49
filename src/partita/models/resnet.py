"""A residual network (ResNet) and its Adam train step, in plain JAX and Optax.

Bottleneck blocks of convolutions (NHWC, no biases), each followed by a batch norm; the first
block of every stage but the first halves the resolution in its 3 x 3 convolution. Batch norms use
the statistics of the batch; the running means of these, for evaluation, are part of the state.
Parameters are kept in float32 and used in `config.dtype`.

Shape legend: B batch, Y rows, X columns, C channels, N classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from partita.models.parts import training
from partita.models.parts.convolutions import convolve

Params = dict[str, Any]
Weights = dict[str, jax.Array]

EXPANSION = 4
"""Width of a block's output, in widths of its 3 x 3 convolution."""


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """Sizes of a ResNet. All are numbers of elements; `dtype` is the compute type."""

    batch: int
    image: int
    """Height and width of an image."""
    width: int
    """Width of the stem, and of the first stage's 3 x 3 convolutions; it doubles by stage."""
    blocks: tuple[int, ...]
    """Blocks of every stage."""
    classes: int
    channels: int = 3
    momentum: float = 0.9
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


PRESETS = {
    "resnet-tiny": ResNetConfig(16, 32, 8, (1, 1), 64),
    "resnet50": ResNetConfig(1024, 224, 64, (3, 4, 6, 3), 1000),
}


def init(config: ResNetConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32), Adam's state, and the running statistics."""
    c = config
    keys = iter(jax.random.split(key, 4 * sum(c.blocks) + 2))
    width_in = c.width
    stages: list[list[Params]] = []
    for stage, count in enumerate(c.blocks):
        width = c.width << stage
        blocks = [_init_block(keys, width_in, width)]
        width_in = EXPANSION * width
        blocks += [_init_block(keys, width_in, width) for _ in range(count - 1)]
        stages.append(blocks)
    params = {
        "stem": _init_conv(keys, 7, c.channels, c.width),
        "stages": stages,
        "w_head": jax.random.normal(next(keys), (width_in, c.classes)) * width_in**-0.5,
        "b_head": jnp.zeros(c.classes),
    }

    def unseen(conv: Weights) -> Weights:
        return {"mean": jnp.zeros_like(conv["bias"]), "variance": jnp.ones_like(conv["bias"])}

    norms = {"stem": params["stem"], "stages": stages}
    statistics = jax.tree.map(unseen, norms, is_leaf=lambda node: "w" in node)
    return training.state(params, c.learning_rate) | {"statistics": statistics}


def _init_conv(keys: Iterator[jax.Array], size: int, width_in: int, width: int) -> Weights:
    """A convolution and its batch norm."""
    w = jax.random.normal(next(keys), (size, size, width_in, width))
    w = w * (2 / (size * size * width_in)) ** 0.5
    return {"w": w, "scale": jnp.ones(width), "bias": jnp.zeros(width)}


def _init_block(keys: Iterator[jax.Array], width_in: int, width: int) -> Params:
    block = {
        "conv1": _init_conv(keys, 1, width_in, width),
        "conv2": _init_conv(keys, 3, width, width),
        "conv3": _init_conv(keys, 1, width, EXPANSION * width),
    }
    if width_in != EXPANSION * width:
        block["skip"] = _init_conv(keys, 1, width_in, EXPANSION * width)
    return block


def _conv(x: jax.Array, params: Weights, stride: int = 1) -> tuple[jax.Array, Weights]:
    """Convolution and batch norm, `[B, Y, X, C] -> [B, Y / stride, X / stride, C]`.

    Returns:
      The output, and the mean and the variance of every channel before the norm.
    """
    y = convolve(x, params["w"], stride)
    y32 = y.astype(jnp.float32)
    mean = jnp.mean(y32, axis=(0, 1, 2))
    variance = jnp.mean((y32 - mean) ** 2, axis=(0, 1, 2))
    y32 = (y32 - mean) * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]
    return y32.astype(x.dtype), {"mean": mean, "variance": variance}


def _block(x: jax.Array, params: Params, stride: int) -> tuple[jax.Array, Params]:
    """Bottleneck block with its residual, and the statistics of its convolutions."""
    seen: Params = {}
    h, seen["conv1"] = _conv(x, params["conv1"])
    h, seen["conv2"] = _conv(jax.nn.relu(h), params["conv2"], stride)
    h, seen["conv3"] = _conv(jax.nn.relu(h), params["conv3"])
    if "skip" in params:
        x, seen["skip"] = _conv(x, params["skip"], stride)
    return jax.nn.relu(x + h), seen


def loss(config: ResNetConfig, params: Params, batch: Params) -> tuple[jax.Array, Params]:
    """Mean cross-entropy of `batch['labels']`, int32 `[B]`, given `batch['images']`.

    Returns:
      The loss, and the mean and the variance of the batch in every batch norm.
    """
    x, stem = _conv(batch["images"].astype(config.dtype), params["stem"], stride=2)
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, strides, "SAME")
    stages: list[list[Params]] = []
    for stage, blocks in enumerate(params["stages"]):
        stages.append([])
        for number, block in enumerate(blocks):
            x, seen = _block(x, block, 2 if stage > 0 and number == 0 else 1)
            stages[-1].append(seen)
    pooled = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
    logits = jnp.einsum("bc,cn->bn", pooled, params["w_head"]) + params["b_head"]
    value = training.cross_entropy(logits, batch["labels"])
    return value, {"stem": stem, "stages": stages}


def train_step(config: ResNetConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    gradient = jax.value_and_grad(lambda p: loss(config, p, batch), has_aux=True)
    (value, seen), gradients = gradient(state["params"])
    optimizer = training.optimizer(config.learning_rate)
    updates, opt = optimizer.update(gradients, state["opt"], state["params"])
    statistics = optax.incremental_update(seen, state["statistics"], 1 - config.momentum)
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt, "statistics": statistics}, value


def inputs(config: ResNetConfig) -> training.Inputs:
    """Images and labels."""
    return training.image_inputs(config.batch, config.image, config.channels, config.classes)


MODEL = training.Definition(init, train_step, inputs)
