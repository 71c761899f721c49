"""Convolutions and pooling split along the dimensions that their windows slide along."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import runs_as_the_original

IMAGE = np.random.default_rng(0).standard_normal((4, 4, 64, 128), dtype=np.float32)
SPATIAL = [pt.ManualPartition({"x": 3}, axis="x"), pt.ManualPartition({"x": 2}, axis="y")]


def checked(fn, *args, tactics=SPATIAL, mesh="x=4,y=2"):
    plan = pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=tactics)
    return runs_as_the_original(plan, *args, tolerance=2e-5)


def kinds(plan):
    return {c.kind for c in plan.collectives}


CONVOLUTIONS = {
    # window, stride, padding, dilation, dilation of the window
    "same": (3, 1, "SAME", 1, 1),
    "strided": (3, 2, "SAME", 1, 1),
    "wide and strided": (7, 2, "SAME", 1, 1),
    "stretched window": (3, 1, "SAME", 1, 2),
    "transposed": (3, 1, ((1, 2), (1, 2)), 2, 1),
    "causal": (2, 1, ((1, 0), (1, 0)), 1, 1),
    "skipping elements": (1, 2, "SAME", 1, 1),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_and_its_gradients_exchange_halos_only(name):
    size, stride, padding, dilation, window_dilation = CONVOLUTIONS[name]
    kernel = np.random.default_rng(1).standard_normal((8, 4, size, size), dtype=np.float32)

    def step(x, w):
        def loss(x, w):
            y = lax.conv_general_dilated(
                x, w, (stride,) * 2, padding, (dilation,) * 2, (window_dilation,) * 2
            )
            return jnp.mean(jnp.tanh(y))

        return jax.value_and_grad(loss, (0, 1))(x, w)

    plan = checked(step, IMAGE, kernel)
    assert kinds(plan) == {"all_reduce"} | ({"collective_permute"} if size > 1 else set())
    exchanged = [c.bytes for c in plan.collectives if c.kind == "collective_permute"]
    assert all(size < IMAGE.nbytes / 8 for size in exchanged)  # a piece, at most


def test_windows_side_by_side_exchange_nothing():
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    assert not checked(pool, IMAGE).collectives
    gradient = checked(lambda x: jax.grad(lambda x: jnp.mean(jnp.tanh(pool(x))))(x), IMAGE)
    assert not gradient.collectives


@pytest.mark.parametrize(("combine", "init"), [(lax.max, -np.inf), (lax.add, 0.0), (lax.mul, 1.0)])
def test_beyond_the_ends_of_a_pooled_dimension_stands_the_initial_value(combine, init):
    def pool(x):
        return lax.reduce_window(x, np.float32(init), combine, (1, 1, 3, 3), (1, 1, 1, 1), "SAME")

    assert kinds(checked(pool, IMAGE)) == {"collective_permute"}


def test_a_dimension_may_be_split_along_two_axes():
    kernel = np.ones((4, 4, 3, 3), np.float32)
    tactics = [pt.ManualPartition({"x": 3}, axis=axis) for axis in "xy"]
    plan = checked(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), IMAGE, kernel, tactics=tactics)
    assert [c.group for c in plan.collectives] == [8, 8]


def test_pieces_that_are_too_narrow_are_gathered_and_it_is_said_why():
    kernel, image = np.ones((4, 4, 11, 11), np.float32), IMAGE[:, :, :, :32]
    plan = checked(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), image, kernel, mesh="x=8,y=1")
    (refusal,) = plan.history[0].refused
    assert refusal.what.startswith("convolution at ")
    assert refusal.reason == "shards of 4 are narrower than the halo that their neighbours need"
    assert kinds(plan) == {"all_gather"}
