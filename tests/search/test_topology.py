"""Where axes lie decides what is split along them."""

import jax
import jax.numpy as jnp
import pytest
from msgspec.structs import replace

import partita as pt
from partita.cost import load

FAST, SLOW = 9e10, 3e9


def step(w1, w2, x):
    def loss(w1, w2):
        return ((jnp.tanh(x @ w1) @ w2) ** 2).sum()

    g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
    return w1 - g1, w2 - g2


ARGS = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(2048, 8192), (8192, 2048), (8192, 2048)]]


def with_networks(**bandwidths):
    """A TPU with these networks, fastest first."""
    device = load("tpu_v5e")
    torus = device.networks[0]
    made = [
        replace(torus, name=name, wrap=1, bandwidth=replace(torus.bandwidth, value=bandwidth))
        for name, bandwidth in sorted(bandwidths.items(), key=lambda item: -item[1])
    ]
    return replace(device, networks=tuple(made))


def specs(hardware):
    plan = pt.plan(step, *ARGS, mesh="x=4@a,y=4@b", hardware=hardware, budget=600)
    return [str(spec) for spec in plan.in_shardings], plan.estimate.step_time


def test_swapping_two_bandwidths_swaps_the_plan():
    there, time = specs(with_networks(a=FAST, b=SLOW))
    back, same = specs(with_networks(a=SLOW, b=FAST))
    swapped = [spec.translate(str.maketrans("xy", "yx")) for spec in back]
    assert there == swapped
    assert there != back
    assert time == pytest.approx(same)
