"""Layers of a decoder that are unrolled compute what those in a loop do."""

from __future__ import annotations

import operator

import jax
import pytest

from partita import models
from partita.models import decoder


@pytest.mark.parametrize(
    "preset", ["llama-tiny", "gemma3-tiny", "gpt-oss-tiny", "deepseek-tiny", "ssm-tiny"]
)
def test_unrolled_layers_compute_what_a_loop_computes(preset):
    looped, unrolled = (
        models.configuration(preset, batch=2, dtype="float32", scan=scan) for scan in (True, False)
    )
    params = decoder.init(looped, jax.random.key(0))
    batch = decoder.MODEL.example_batch(looped, jax.random.key(1))
    listed = {
        name: [jax.tree.map(operator.itemgetter(n), value) for n in range(len(value["ln1"]))]
        if isinstance(value, dict)
        else value
        for name, value in params.items()
    }
    shapes = jax.tree.map(jax.numpy.shape, decoder.init(unrolled, jax.random.key(0)))
    assert jax.tree.map(jax.numpy.shape, listed) == shapes
    wanted, found = decoder.loss(looped, params, batch), decoder.loss(unrolled, listed, batch)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
