"""Collectives in loops are hidden by the work of one iteration, and by no more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array

LAYERS, DEPTH, WIDTH = 8, 64, 1024


def stacked(rows):
    """A loop over layers, each of which gathers many weights; then work outside of it."""

    def fn(ws, x, big):
        def layer(h, w):
            for each in w:
                h = jnp.tanh(h @ each)
            return h, None

        h = jax.lax.scan(layer, x, ws)[0]
        return h, big @ big

    args = (
        array(LAYERS, DEPTH, WIDTH, WIDTH, dtype=jnp.bfloat16),
        array(rows, WIDTH, dtype=jnp.bfloat16),
        array(32768, 32768, dtype=jnp.bfloat16),
    )
    tactics = [pt.ManualPartition({"x": 0}, "x"), pt.ManualPartition({"ws": 2}, "x")]
    return pt.plan(fn, *args, mesh="x=4@dcn", hardware="tpu_v5e", tactics=tactics).estimate


def gathered(estimate):
    return sum(traffic.seconds for traffic in estimate.traffic.values())


def test_a_loop_that_computes_little_waits_for_what_it_gathers():
    """The product beside the loop takes longer than all gathers, and hides none of them."""
    small = stacked(16)
    assert small.compute_time > 1.3 * gathered(small)
    assert small.exposed_time > 0.9 * gathered(small)


def test_the_more_a_loop_computes_the_more_it_hides():
    exposed = [stacked(rows).exposed_time for rows in (16, 2**16, 2**19)]
    assert exposed[0] > 1.5 * exposed[1] > 3 * exposed[2]


def test_what_is_not_hidden_is_waited_for():
    for rows in (16, 2**19):
        estimate = stacked(rows)
        moved = estimate.exposed_time + estimate.hidden_time
        assert moved == pytest.approx(gathered(estimate), rel=0.01)
