"""A diffusion transformer (DiT) and its Adam train step, in plain JAX and Optax.

Patches of a latent image are the tokens of a transformer; time and class shift, scale and gate
every layer (adaLN-Zero), whose own norms learn nothing. It predicts the noise, mixed in on a cosine
schedule, and beside it how certain that is: the two halves of its output. Noise and times come with
the batch. The attention has no key bias, which the softmax would not see. The layers are stacked,
for `lax.scan` with rematerialization. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: L layers, B batch, I and J rows and columns of patches, P and R rows and columns
within a patch, C channels, S (and Q, of the queries) sequence I x J, D embed, H heads, K head-dim,
F ffn, M what modulates a layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers, training
from partita.models.parts.layers import Learned
from partita.models.parts.training import Input
from partita.models.vit import patches

Params = dict[str, Any]

TIMES = 1000
"""Times are this many steps long."""


WIDEST = 5.0
"""Bound of the logarithm of a variance, either way."""


@dataclasses.dataclass(frozen=True)
class DiTConfig:
    """Sizes of a DiT. All are numbers of elements; `dtype` is the compute type."""

    layers: int
    batch: int
    image: int
    """Height and width of a latent image."""
    patch: int
    embed: int
    heads: int
    classes: int
    """Classes; the table has one more, for none."""
    channels: int = 4
    frequencies: int = 256
    """Waves that the time enters by."""
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.embed // self.heads

    @property
    def rows(self) -> int:
        """Rows, and columns, of patches."""
        return self.image // self.patch


# Table 1 of arXiv 2212.09748, patches of 2, for images of 256 x 256.
PRESETS = {
    "dit-tiny": DiTConfig(2, 16, 8, 2, 64, 8, 15, frequencies=32),
    "dit-b2": DiTConfig(12, 256, 32, 2, 768, 12, 1000),
    "dit-xl2": DiTConfig(28, 256, 32, 2, 1152, 16, 1000),
}


def init(config: DiTConfig, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    layer_key, key = jax.random.split(key)
    area, out = c.patch * c.patch * c.channels, (c.patch, c.patch, 2 * c.channels)
    shapes: layers.Shapes = {
        "w_patch": ((c.patch, c.patch, c.channels, c.embed), area),
        "w_time1": ((c.frequencies, c.embed), c.frequencies),
        "w_time2": ((c.embed, c.embed), c.embed),
        "classes": ((c.classes + 1, c.embed), c.embed),
        "w_modulate": ((2, c.embed, c.embed), c.embed),
        "w_head": ((c.patch, c.patch, c.embed, 2 * c.channels), c.embed),
    }
    zeros = dict.fromkeys(("b_patch", "b_time1", "b_time2"), (c.embed,))
    layer = layers.attention_parameters(c.embed, (c.heads, c.head_dim), "qvo")
    layer = layer.joined(layers.feed_forward_parameters(c.embed, 4 * c.embed, biases=True))
    modulate: layers.Shapes = {"w_modulate": ((6, c.embed, c.embed), c.embed)}
    layer = layer.joined(Learned(modulate, layers.zeros({"b_modulate": (6, c.embed)})))
    return {
        **layers.matrices(key, shapes),
        **layers.zeros({**zeros, "b_modulate": (2, c.embed), "b_head": out}),
        "layers": jax.vmap(layer.init)(jax.random.split(layer_key, c.layers)),
    }


def _condition(config: DiTConfig, params: Params, batch: Params) -> jax.Array:
    """Time and class, `[B, D]`, as they modulate layers."""
    time = layers.waves(TIMES * batch["time"], config.frequencies).astype(config.dtype)
    time = jax.nn.silu(layers.dense("bm,md->bd", time, params["w_time1"], params["b_time1"]))
    time = layers.dense("bm,md->bd", time, params["w_time2"], params["b_time2"])
    return jax.nn.silu(time + params["classes"].astype(time.dtype)[batch["labels"]])


def _modulation(condition: jax.Array, params: Params) -> list[jax.Array]:
    """Shifts, scales and gates, each `[B, 1, D]`."""
    made = layers.dense("bd,mde->bme", condition, params["w_modulate"], params["b_modulate"])
    return [made[:, number][:, None] for number in range(made.shape[1])]


def _modulated(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    return layers.layer_norm(x) * (1 + scale) + shift


def _positions(config: DiTConfig) -> jax.Array:
    """Waves of row and column, `[S, D]`."""
    wave = layers.waves(jnp.arange(config.rows), config.embed // 2)
    shape = (config.rows, config.rows, config.embed // 2)
    row, column = jnp.broadcast_to(wave[:, None], shape), jnp.broadcast_to(wave[None], shape)
    return jnp.concatenate([row, column], axis=-1).reshape(-1, config.embed)


def predict(config: DiTConfig, params: Params, noisy: jax.Array, batch: Params) -> jax.Array:
    """The noise in latent images `[B, I x P, J x R, C]`, and what its variance is found by."""
    c = config
    condition = _condition(c, params, batch)

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        shift1, scale1, gate1, shift2, scale2, gate2 = _modulation(condition, layer)
        modulated = _modulated(x, shift1, scale1)
        x = x + gate1 * layers.attention(modulated, modulated, layer)
        return x + gate2 * layers.feed_forward(_modulated(x, shift2, scale2), layer), None

    x = patches(noisy, c.patch, c.dtype)
    x = layers.dense("bipjrc,prcd->bijd", x, params["w_patch"], params["b_patch"])
    x = x.reshape(-1, c.rows * c.rows, c.embed) + _positions(c).astype(x.dtype)
    x, _ = jax.lax.scan(block, x, params["layers"])
    x = _modulated(x, *_modulation(condition, params))
    x = layers.dense("bsd,prdc->bsprc", x, params["w_head"], params["b_head"])
    x = x.reshape(-1, c.rows, c.rows, c.patch, c.patch, 2 * c.channels).swapaxes(2, 3)
    return x.reshape(-1, c.image, c.image, 2 * c.channels)


def loss(config: DiTConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of the noise predicted from latents mixed with `batch['noise']`, and a
    thousandth of the likelihood of the error under the predicted variance."""
    noisy = training.noisy(batch["latents"], batch)
    predicted = predict(config, params, noisy, batch).astype(jnp.float32)
    noise, log_variance = jnp.split(predicted, 2, axis=-1)
    error = (noise - batch["noise"]) ** 2
    log_variance = WIDEST * jnp.tanh(log_variance)
    likelihood = log_variance + jax.lax.stop_gradient(error) * jnp.exp(-log_variance)
    return jnp.mean(error) + 5e-4 * jnp.mean(likelihood)


def inputs(config: DiTConfig) -> training.Inputs:
    """Latents, noise, times and labels."""
    c = config
    latents = Input((c.batch, c.image, c.image, c.channels))
    time, labels = Input((c.batch,), uniform=True), Input((c.batch,), c.classes)
    return {"latents": latents, "noise": latents, "time": time, "labels": labels}


MODEL = training.trained(init, loss, inputs)
