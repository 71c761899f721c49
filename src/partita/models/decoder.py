"""A decoder and its Adam train step, in plain JAX and Optax: the model of Llama, Gemma, Mixtral,
Qwen, GPT-OSS, DeepSeek and GPT.

A layer has two parts. One mixes positions (`parts.attention`); one works on each position alone
(`parts.feed_forward`). A configuration holds both, with their options. The layers are stacked, for
`lax.scan` with rematerialization, or unrolled. Parameters are kept in float32 and used in `dtype`.
The model knows nothing of how it is partitioned.

A family of decoders is a file with presets, each a `Decoder`: see `llama.py`.

Shape legend: L layers, B batch, S sequence, D embed, N vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers, training
from partita.models.parts.attention import Alternation, Mixing, Varying
from partita.models.parts.feed_forward import FeedForward
from partita.models.parts.layers import Learned, Norm, Weights

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Norms:
    """Norms before both parts of a layer and behind the last layer."""

    norm: Norm = layers.rms_norm
    """Function of what is normed, and of the learned scale."""
    initial: float = 1.0
    """Value of scales at first: 0 where they are learned as differences from one (Gemma)."""
    behind: bool = False
    """Norms behind both parts, too (Gemma 2 and 3)."""

    def scale(self, width: int) -> jax.Array:
        """The scale of a norm at first, `[width]`."""
        return jnp.full(width, self.initial, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Ends:
    """The two ends of a decoder: from tokens to the first layer, and from the last to logits."""

    tied: bool = False
    """Embedding used as the output projection, too (GPT, Gemma, Qwen 3 0.6B, Hawk)."""
    scaled: bool = False
    """Embeddings multiplied by the root of their width (Gemma)."""
    cap: float = 0.0
    """Limit that the size of logits tends to, or 0 for none (Gemma 2)."""


@dataclasses.dataclass(frozen=True)
class Leading:
    """First layers that have another feed-forward than the others (DeepSeek-V3)."""

    count: int
    feed_forward: tuple[FeedForward, ...]


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder: its sizes, which are numbers of elements, and its parts with their options."""

    layers: int
    """Layers, without the leading ones."""
    batch: int
    sequence: int
    embed: int
    vocabulary: int
    mixing: Mixing
    feed_forward: tuple[FeedForward, ...]
    """One part, or two that are added, in this order: experts, and a shared one (DeepSeek)."""
    norms: Norms = Norms()
    ends: Ends = Ends()
    leading: Leading | None = None
    """First layers of another kind (DeepSeek-V3)."""
    alternation: Alternation | None = None
    """Windows and rotary bases that differ between layers (Gemma 2 and 3, GPT-OSS)."""
    balance: float = 0.0
    """Weight of the load-balance loss of experts (all that have them but DeepSeek-V3)."""
    scan: bool = True
    """Loop over stacked layers, rematerialized, rather than unrolled layers (GPT)."""
    dtype: str = "bfloat16"
    """Type to compute in."""
    learning_rate: float = 1e-3


def init(config: Decoder, key: jax.Array) -> Params:
    """The parameters (float32)."""
    c = config
    layer_key, embed_key, output_key, leading_key = jax.random.split(key, 4)
    params = {
        "embed": jax.random.normal(embed_key, (c.vocabulary, c.embed)),
        "layers": _init_layers(c, c.feed_forward, c.layers, layer_key),
        "ln_f": c.norms.scale(c.embed),
    }
    if c.ends.tied:
        params["embed"] *= c.embed**-0.5
    else:
        output = jax.random.normal(output_key, (c.embed, c.vocabulary))
        params["output"] = output * c.embed**-0.5
    if c.leading:
        first = c.leading.feed_forward, c.leading.count
        params["dense"] = _init_layers(c, *first, leading_key)
    return params


def _init_layers(
    config: Decoder, feed_forward: tuple[FeedForward, ...], count: int, key: jax.Array
) -> Any:
    """The parameters of layers: stacked, or a list of those of each."""
    c, norms = config, ("ln1", "ln2", *(("ln1_after", "ln2_after") * config.norms.behind))
    learned = Learned(norms=dict.fromkeys(norms, c.embed))
    parts: tuple[Mixing | FeedForward, ...] = (c.mixing, *feed_forward)
    for part in parts:
        learned = learned.joined(part.learned(c.embed))

    layer, keys = functools.partial(learned.init, norm=c.norms.scale), jax.random.split(key, count)
    return jax.vmap(layer)(keys) if c.scan else [layer(k) for k in keys]


def loss(config: Decoder, params: Params, batch: Params) -> jax.Array:
    """Mean cross-entropy of `batch['targets']` given `batch['tokens']`, both int32 `[B, S]`, plus
    the load-balance loss of experts, averaged over the layers and weighted."""
    c = config
    embed = params["embed"].astype(c.dtype)
    x = embed[batch["tokens"]]
    if c.ends.scaled:
        x = x * c.embed**0.5
    varying = c.alternation.varying(c.layers, x.shape[1]) if c.alternation else Varying()
    if c.leading:
        x, _ = _stack(c, c.leading.feed_forward, x, (params["dense"], Varying()))
    x, balance = _stack(c, c.feed_forward, x, (params["layers"], varying))
    x = c.norms.norm(x, params["ln_f"])
    if c.ends.tied:
        logits = jnp.einsum("bsd,nd->bsn", x, embed)
    else:
        logits = layers.dense("bsd,dn->bsn", x, params["output"])
    logits = layers.capped(logits.astype(jnp.float32), c.ends.cap)
    value = training.cross_entropy(logits, batch["targets"])
    return value if balance is None else value + c.balance * jnp.mean(balance)


def _stack(
    config: Decoder,
    feed_forward: tuple[FeedForward, ...],
    x: jax.Array,
    inputs: tuple[Any, Varying],
) -> tuple[jax.Array, jax.Array | None]:
    """Applies layers, `[B, S, D] -> [B, S, D]`; also the load-balance loss of each, `[L]`."""
    block = functools.partial(_block, config, feed_forward)
    if config.scan:
        x, balance = jax.lax.scan(jax.checkpoint(block), x, inputs)
        return x, balance
    stacked, varying = inputs
    balances = []
    for number, layer in enumerate(stacked):
        x, balance = block(x, (layer, jax.tree.map(operator.itemgetter(number), varying)))
        balances += [] if balance is None else [balance]
    return x, jnp.stack(balances) if balances else None


def _block(
    config: Decoder,
    feed_forward: tuple[FeedForward, ...],
    x: jax.Array,
    inputs: tuple[Weights, Varying],
) -> tuple[jax.Array, jax.Array | None]:
    """Applies one layer, `[B, S, D] -> [B, S, D]`; also the load-balance loss of its experts."""
    (layer, varying), norm = inputs, config.norms.norm

    def behind(x: jax.Array, name: str) -> jax.Array:
        return norm(x, layer[name]) if config.norms.behind else x

    mixed = config.mixing(norm(x, layer["ln1"]), layer, norm, varying)
    x = x + behind(mixed, "ln1_after")
    normed = norm(x, layer["ln2"])
    outs, balances = zip(*(part(normed, layer) for part in feed_forward), strict=True)
    x = x + behind(functools.reduce(operator.add, outs), "ln2_after")
    return x, next((balance for balance in balances if balance is not None), None)


def inputs(config: Decoder) -> training.Inputs:
    """Tokens and targets."""
    return training.token_inputs(config.batch, config.sequence, config.vocabulary)


MODEL = training.trained(init, loss, inputs)
