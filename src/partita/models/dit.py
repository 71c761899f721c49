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
import functools
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import layers, training

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
    """The train state: parameters (float32) and Adam's state."""
    c = config
    layer_key, key = jax.random.split(key)
    layer = functools.partial(_init_layer, c)
    area, out = c.patch * c.patch * c.channels, (c.patch, c.patch, 2 * c.channels)
    shapes: layers.Shapes = {
        "w_patch": ((c.patch, c.patch, c.channels, c.embed), area),
        "w_time1": ((c.frequencies, c.embed), c.frequencies),
        "w_time2": ((c.embed, c.embed), c.embed),
        "classes": ((c.classes + 1, c.embed), c.embed),
        "w_modulate": ((2, c.embed, c.embed), c.embed),
        "w_head": ((c.patch, c.patch, c.embed, 2 * c.channels), c.embed),
    }
    params = {
        **layers.matrices(key, shapes),
        "layers": jax.vmap(layer)(jax.random.split(layer_key, c.layers)),
        "b_patch": jnp.zeros(c.embed),
        "b_time1": jnp.zeros(c.embed),
        "b_time2": jnp.zeros(c.embed),
        "b_modulate": jnp.zeros((2, c.embed)),
        "b_head": jnp.zeros(out),
    }
    return training.state(params, c.learning_rate)


def _init_layer(config: DiTConfig, key: jax.Array) -> Params:
    """One layer: its six matrices, those that modulate it, and biases."""
    c = config
    heads, ffn = (c.heads, c.head_dim), 4 * c.embed
    shapes: layers.Shapes = {
        "wq": ((c.embed, *heads), c.embed),
        "wk": ((c.embed, *heads), c.embed),
        "wv": ((c.embed, *heads), c.embed),
        "wo": ((*heads, c.embed), c.embed),
        "w_in": ((c.embed, ffn), c.embed),
        "w_out": ((ffn, c.embed), ffn),
        "w_modulate": ((6, c.embed, c.embed), c.embed),
    }
    biases: dict[str, tuple[int, ...]] = {
        "bq": heads,
        "bv": heads,
        "bo": (c.embed,),
        "b_in": (ffn,),
        "b_out": (c.embed,),
        "b_modulate": (6, c.embed),
    }
    zeros = {name: jnp.zeros(shape) for name, shape in biases.items()}
    return layers.matrices(key, shapes) | zeros


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


def _attention(x: jax.Array, layer: Params) -> jax.Array:
    """Self-attention, `[B, S, D] -> [B, S, D]`."""
    q = layers.dense("bsd,dhk->bshk", x, layer["wq"], layer["bq"])
    k = layers.dense("bsd,dhk->bshk", x, layer["wk"])
    v = layers.dense("bsd,dhk->bshk", x, layer["wv"], layer["bv"])
    return layers.dense("bqhk,hkd->bqd", layers.attend(q, k, v), layer["wo"], layer["bo"])


def _ffn(x: jax.Array, layer: Params) -> jax.Array:
    """Two matrices around a GELU, `[B, S, D] -> [B, S, D]`."""
    hidden = jax.nn.gelu(layers.dense("bsd,df->bsf", x, layer["w_in"], layer["b_in"]))
    return layers.dense("bsf,fd->bsd", hidden, layer["w_out"], layer["b_out"])


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
        x = x + gate1 * _attention(_modulated(x, shift1, scale1), layer)
        return x + gate2 * _ffn(_modulated(x, shift2, scale2), layer), None

    x = noisy.astype(c.dtype).reshape(-1, c.rows, c.patch, c.rows, c.patch, c.channels)
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
    angle = batch["time"][:, None, None, None] * (jnp.pi / 2)
    noisy = jnp.cos(angle) * batch["latents"] + jnp.sin(angle) * batch["noise"]
    predicted = predict(config, params, noisy, batch).astype(jnp.float32)
    noise, log_variance = jnp.split(predicted, 2, axis=-1)
    error = (noise - batch["noise"]) ** 2
    log_variance = WIDEST * jnp.tanh(log_variance)
    likelihood = log_variance + jax.lax.stop_gradient(error) * jnp.exp(-log_variance)
    return jnp.mean(error) + 5e-4 * jnp.mean(likelihood)


def train_step(config: DiTConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: DiTConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    shape = (config.batch, config.image, config.image, config.channels)
    latents = jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "latents": latents,
        "noise": latents,
        "time": jax.ShapeDtypeStruct((config.batch,), jnp.float32),
        "labels": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }


def example_batch(config: DiTConfig, key: jax.Array) -> Params:
    """A batch of random latents, noise, times and labels."""
    batch = training.example(abstract_batch(config), key, {"labels": config.classes})
    return batch | {"time": jax.random.uniform(key, (config.batch,))}
