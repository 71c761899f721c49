"""A gated linear recurrence, as Hawk's, and its Adam train step, in plain JAX and Optax.

A state-space model whose diagonal transition depends on the input (RG-LRU): where a transformer
has attention, every layer has a recurrence over the sequence, run as an associative scan, beside
a gate; its own gates are block-diagonal. (Hawk's short convolution is left out.) The feed-forward
is a GeGLU and the embedding is tied to the output projection.

Shape legend: B batch, S sequence, D embed, H blocks of the recurrent state, K (and J) width of a
block.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from partita.models import decoder
from partita.models.decoder import Decoder, Ends
from partita.models.parts import layers
from partita.models.parts.attention import Varying
from partita.models.parts.feed_forward import Gated, geglu
from partita.models.parts.layers import Learned, Norm, Weights

MODEL = decoder.MODEL

SHARPNESS = 8.0
"""Exponent of the transition where its gate is fully open."""


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """Multiplies a recurrence by a GELU, `[B, S, D] -> [B, S, D]`; it computes in float32."""

    blocks: int
    """Blocks of the recurrent state, whose gates are independent."""
    block_dim: int

    def learned(self, embed: int) -> Learned:
        """Projections and gates. Transitions, gates open, are between 0.9 and 0.999 at first."""
        state = (self.blocks, self.block_dim)
        matrices: layers.Shapes = {
            "w_branch": ((embed, *state), embed),
            "w_x": ((embed, *state), embed),
            "w_a": ((*state, self.block_dim), self.block_dim),
            "w_i": ((*state, self.block_dim), self.block_dim),
            "w_o": ((*state, embed), self.blocks * self.block_dim),
        }
        transition = jnp.linspace(0.9, 0.999, self.blocks * self.block_dim).reshape(state)
        decay = jnp.log(jnp.expm1(-jnp.log(transition) / SHARPNESS))
        return Learned(matrices, {"decay": decay} | layers.zeros({"b_a": state, "b_i": state}))

    def __call__(self, x: jax.Array, layer: Weights, norm: Norm, varying: Varying) -> jax.Array:
        """Mixes the positions of the normed `x`."""
        branch = jax.nn.gelu(layers.dense("bsd,dhk->bshk", x, layer["w_branch"]))
        states = _states(layers.dense("bsd,dhk->bshk", x, layer["w_x"]), layer)
        return layers.dense("bshk,hkd->bsd", branch * states, layer["w_o"])


def _states(u: jax.Array, layer: Weights) -> jax.Array:
    """The states h_t = a_t h_(t-1) + sqrt(1 - a_t^2) i_t u_t, `[B, S, H, K] -> [B, S, H, K]`."""

    def gate(w: str, b: str) -> jax.Array:
        z = layers.dense("bshj,hjk->bshk", u, layer[w])
        return jax.nn.sigmoid(z.astype(jnp.float32) + layer[b])

    def combine(
        first: tuple[jax.Array, jax.Array], then: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return first[0] * then[0], then[0] * first[1] + then[1]

    log_a = -SHARPNESS * jax.nn.softplus(layer["decay"]) * gate("w_a", "b_a")
    x = jnp.sqrt(-jnp.expm1(2 * log_a)) * gate("w_i", "b_i") * u.astype(jnp.float32)
    states: jax.Array = jax.lax.associative_scan(combine, (jnp.exp(log_a), x), axis=1)[1]
    return states.astype(u.dtype)


def _ssm(sizes: tuple[int, int, int, int, int], state: tuple[int, int], ffn: int) -> Decoder:
    return Decoder(*sizes, Recurrence(*state), (Gated(ffn, geglu),), ends=Ends(tied=True))


PRESETS = {
    "ssm-tiny": _ssm((2, 16, 32, 64, 512), (8, 8), 128),
    "ssm-1b": _ssm((24, 128, 2048, 2048, 32000), (16, 160), 6144),
}
