"""A U-Net like that of Stable Diffusion XL and its Adam train step, in plain JAX and Optax.

Residual blocks of convolutions, conditioned on the time, on a pooled text and on the sizes of the
picture; behind those of the lower resolutions transformers between the pixels, with cross attention
to a text, whose layers are stacked for `lax.scan` with rematerialization. It is trained to predict
the noise, mixed into latents on a cosine schedule; noise, times and the encoded text come with the
batch. Parameters are kept in float32 and used in `config.dtype`.

Shape legend: B batch, Y rows, X columns, C channels, S (and Q, of the queries) pixels Y x X or
tokens of the text, H heads, K head-dim, F ffn, T time embedding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import convolutions, layers, training

Params = dict[str, Any]

TIMES = 1000
"""Times are this many steps long."""


@dataclasses.dataclass(frozen=True)
class SDXLConfig:
    """Sizes of an SDXL U-Net. All are numbers of elements; `dtype` is the compute type."""

    batch: int
    image: int
    """Height and width of the latents; halved from level to level."""
    channels: int
    multipliers: tuple[int, ...]
    """Width of every level, in `channels`."""
    depths: tuple[int, ...]
    """Layers of a transformer of every level; 0 for no transformers."""
    blocks: int
    """Residual blocks of a level, on the way down; one more on the way up."""
    head_dim: int
    text: int
    """Tokens of the text."""
    text_embed: int
    pooled_embed: int
    size_embed: int = 256
    """Waves that each of the six sizes of a picture enters by."""
    groups: int = 32
    latent_channels: int = 4
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3

    @property
    def time(self) -> int:
        """Width of the time embedding."""
        return 4 * self.channels


SIZES = 6
"""Height and width of the original and of the target, and where it was cropped."""

# Section 2.1 and table 1 of arXiv 2307.01952, and unet/config.json of
# stabilityai/stable-diffusion-xl-base-1.0.
PRESETS = {
    "sdxl-tiny": SDXLConfig(16, 8, 16, (1, 2), (0, 1), 1, 8, 8, 32, 16, size_embed=8, groups=8),
    "sdxl": SDXLConfig(256, 128, 320, (1, 2, 4), (0, 2, 10), 2, 64, 77, 2048, 1280),
}


def init(config: SDXLConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    keys = iter(jax.random.split(key, 1024))  # more than there are weights
    widths = [c.channels * multiplier for multiplier in c.multipliers]

    def residual(width_in: int, width: int) -> Params:
        return convolutions.init_residual(keys, width_in, width, c.time)

    def block(level: int, width_in: int) -> Params:
        params: Params = {"res": residual(width_in, widths[level])}
        if c.depths[level]:
            params["transformer"] = _init_transformer(c, keys, widths[level], c.depths[level])
        return params

    width = c.channels
    skips = [width]
    down: list[Params] = []
    for level, width_out in enumerate(widths):
        blocks = [block(level, width if n == 0 else width_out) for n in range(c.blocks)]
        skips += [width_out] * c.blocks
        down.append({"blocks": blocks})
        if level < len(widths) - 1:
            down[-1]["resample"] = convolutions.init_conv(keys, 3, width_out, width_out)
            skips.append(width_out)
        width = width_out
    middle = {
        "res1": residual(width, width),
        "transformer": _init_transformer(c, keys, width, c.depths[-1]),
        "res2": residual(width, width),
    }
    up: list[Params] = []
    for level, width_out in reversed(list(enumerate(widths))):
        blocks = []
        for _ in range(c.blocks + 1):
            blocks.append(block(level, width + skips.pop()))
            width = width_out
        up.append({"blocks": blocks})
        if level > 0:
            up[-1]["resample"] = convolutions.init_conv(keys, 3, width, width)
    added = c.pooled_embed + SIZES * c.size_embed
    params = {
        "time1": convolutions.init_dense(keys, c.channels, c.time),
        "time2": convolutions.init_dense(keys, c.time, c.time),
        "added1": convolutions.init_dense(keys, added, c.time),
        "added2": convolutions.init_dense(keys, c.time, c.time),
        "conv_in": convolutions.init_conv(keys, 3, c.latent_channels, c.channels),
        "down": down,
        "middle": middle,
        "up": up,
        "norm_out": convolutions.init_norm(width),
        "conv_out": convolutions.init_conv(keys, 3, width, c.latent_channels),
    }
    return training.state(params, c.learning_rate)


def _init_transformer(
    config: SDXLConfig, keys: Iterator[jax.Array], width: int, depth: int
) -> Params:
    """A transformer of a width, with a norm and a matrix on both sides of its layers."""
    layer = functools.partial(_init_layer, config, width)
    return {
        "norm": convolutions.init_norm(width),
        "project_in": convolutions.init_dense(keys, width, width),
        "layers": jax.vmap(layer)(jax.random.split(next(keys), depth)),
        "project_out": convolutions.init_dense(keys, width, width),
    }


def _init_layer(config: SDXLConfig, width: int, key: jax.Array) -> Params:
    """A layer of a transformer: attention, cross attention and a gated feed-forward."""
    c = config
    heads, ffn = (width // c.head_dim, c.head_dim), 4 * width

    def attention(key: jax.Array, context: int) -> Params:
        shapes: layers.Shapes = {
            "wq": ((width, *heads), width),
            "wk": ((context, *heads), context),
            "wv": ((context, *heads), context),
            "wo": ((*heads, width), width),
        }
        norm = convolutions.init_norm(width)
        return layers.matrices(key, shapes) | {"bo": jnp.zeros(width), "ln": norm}

    keys = jax.random.split(key, 3)
    shapes: layers.Shapes = {
        "w_gate": ((width, ffn), width),
        "w_up": ((width, ffn), width),
        "w_down": ((ffn, width), ffn),
    }
    biases = {"b_gate": ffn, "b_up": ffn, "b_down": width}
    return {
        "self": attention(keys[0], width),
        "cross": attention(keys[1], c.text_embed),
        "ffn": layers.matrices(keys[2], shapes)
        | {name: jnp.zeros(n) for name, n in biases.items()}
        | {"ln": convolutions.init_norm(width)},
    }


def _attention(x: jax.Array, context: jax.Array, params: Params) -> jax.Array:
    """Attention of `x`, `[B, Q, C]`, to the context, `[B, S, C]`, which gives `[B, Q, C]`."""
    q = layers.dense("bqc,chk->bqhk", x, params["wq"])
    k = layers.dense("bsc,chk->bshk", context, params["wk"])
    v = layers.dense("bsc,chk->bshk", context, params["wv"])
    return layers.dense("bqhk,hkc->bqc", layers.attend(q, k, v), params["wo"], params["bo"])


def _ffn(x: jax.Array, params: Params) -> jax.Array:
    """GeGLU with biases, `[B, S, C] -> [B, S, C]`."""
    gate = jax.nn.gelu(layers.dense("bsc,cf->bsf", x, params["w_gate"], params["b_gate"]))
    up = layers.dense("bsc,cf->bsf", x, params["w_up"], params["b_up"])
    return layers.dense("bsf,fc->bsc", gate * up, params["w_down"], params["b_down"])


def _transformer(config: SDXLConfig, x: jax.Array, text: jax.Array, params: Params) -> jax.Array:
    """A transformer between the pixels, with its residual, `[B, Y, X, C] -> [B, Y, X, C]`."""

    @jax.checkpoint
    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        normed = layers.layer_norm(x, layer["self"]["ln"], 1e-5)
        x = x + _attention(normed, normed, layer["self"])
        x = x + _attention(layers.layer_norm(x, layer["cross"]["ln"], 1e-5), text, layer["cross"])
        return x + _ffn(layers.layer_norm(x, layer["ffn"]["ln"], 1e-5), layer["ffn"]), None

    normed = convolutions.group_norm(x, params["norm"], config.groups)
    pixels = convolutions.dense(normed.reshape(x.shape[0], -1, x.shape[3]), params["project_in"])
    pixels, _ = jax.lax.scan(block, pixels, params["layers"])
    return x + convolutions.dense(pixels, params["project_out"]).reshape(x.shape)


def _condition(config: SDXLConfig, params: Params, batch: Params) -> jax.Array:
    """Time, pooled text and sizes of the picture, `[B, T]`."""
    c = config
    time = layers.waves(TIMES * batch["time"], c.channels).astype(c.dtype)
    time = convolutions.dense(time, params["time1"])
    time = convolutions.dense(jax.nn.silu(time), params["time2"])
    sizes = layers.waves(batch["sizes"], c.size_embed).reshape(time.shape[0], -1)
    added = jnp.concatenate([batch["pooled"], sizes], axis=-1).astype(c.dtype)
    added = convolutions.dense(added, params["added1"])
    return time + convolutions.dense(jax.nn.silu(added), params["added2"])


def predict(config: SDXLConfig, params: Params, noisy: jax.Array, batch: Params) -> jax.Array:
    """The noise in latents `[B, Y, X, C]`, given times, text and sizes."""
    c = config
    time, text = _condition(c, params, batch), batch["text"].astype(c.dtype)

    def block(x: jax.Array, block: Params) -> jax.Array:
        x = convolutions.residual(x, time, block["res"], c.groups)
        return _transformer(c, x, text, block["transformer"]) if "transformer" in block else x

    x = convolutions.conv(noisy.astype(c.dtype), params["conv_in"])
    skips = [x]
    for level in params["down"]:
        for params_of_block in level["blocks"]:
            x = block(x, params_of_block)
            skips.append(x)
        if "resample" in level:
            x = convolutions.conv(x, level["resample"], stride=2)
            skips.append(x)
    x = convolutions.residual(x, time, params["middle"]["res1"], c.groups)
    x = _transformer(c, x, text, params["middle"]["transformer"])
    x = convolutions.residual(x, time, params["middle"]["res2"], c.groups)
    for level in params["up"]:
        for params_of_block in level["blocks"]:
            x = block(jnp.concatenate([x, skips.pop()], axis=-1), params_of_block)
        if "resample" in level:
            x = convolutions.conv(convolutions.double(x), level["resample"])
    x = jax.nn.silu(convolutions.group_norm(x, params["norm_out"], c.groups))
    return convolutions.conv(x, params["conv_out"])


def loss(config: SDXLConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of the noise predicted from latents mixed with `batch['noise']`."""
    angle = batch["time"][:, None, None, None] * (jnp.pi / 2)
    noisy = jnp.cos(angle) * batch["latents"] + jnp.sin(angle) * batch["noise"]
    noise = predict(config, params, noisy, batch)
    return jnp.mean((noise.astype(jnp.float32) - batch["noise"]) ** 2)


def train_step(config: SDXLConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: SDXLConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {
        "latents": (c.batch, c.image, c.image, c.latent_channels),
        "noise": (c.batch, c.image, c.image, c.latent_channels),
        "time": (c.batch,),
        "text": (c.batch, c.text, c.text_embed),
        "pooled": (c.batch, c.pooled_embed),
        "sizes": (c.batch, SIZES),
    }
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def example_batch(config: SDXLConfig, key: jax.Array) -> Params:
    """A batch of random latents, noise, times, texts and sizes."""
    batch = training.example(abstract_batch(config), key)
    return batch | {"time": jax.random.uniform(key, (config.batch,))}
