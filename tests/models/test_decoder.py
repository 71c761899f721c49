"""Decoders are one model with options: its parts are sized by name, and layers loop or do not."""

from __future__ import annotations

import operator

import jax
import pytest

import partita as pt
from partita import models
from partita.models import decoder


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({"layers": 3}, {"wq": (3, 64, 8, 8), "wk": (3, 64, 8), "w_up": (3, 64, 128)}),
        ({"group": 2}, {"wq": (2, 64, 2, 8), "wk": (2, 64, 8)}),  # multi-query
        ({"kv_heads": 4, "group": None}, {"wq": (2, 64, 4, 8), "wk": (2, 64, 4, 8)}),  # multi-head
        ({"kv_heads": 4, "group": 2}, {"wq": (2, 64, 4, 2, 8), "wk": (2, 64, 4, 8)}),  # grouped
        ({"head_dim": 4, "ffn": 32}, {"wo": (2, 8, 4, 64), "w_down": (2, 32, 64)}),
    ],
)
def test_sizes_of_parts_are_replaced_by_their_names(changes, shapes):
    state, _ = models.build("gemma-tiny", **changes).args
    found = {name: state["params"]["layers"][name].shape for name in shapes}
    assert found == shapes


def test_a_field_that_no_part_has_is_refused():
    with pytest.raises(pt.ModelError, match="no field 'headdim'; did you mean 'head_dim'"):
        models.build("gemma-tiny", headdim=4)
    with pytest.raises(pt.ModelError, match="no field 'experts'"):
        models.build("llama-tiny", experts=4)


@pytest.mark.parametrize(
    "preset", ["llama-tiny", "gemma3-tiny", "gpt-oss-tiny", "deepseek-tiny", "ssm-tiny"]
)
def test_unrolled_layers_compute_what_a_loop_computes(preset):
    looped, unrolled = (
        models.configuration(preset, batch=2, dtype="float32", scan=scan) for scan in (True, False)
    )
    params = decoder.init(looped, jax.random.key(0))["params"]
    batch = decoder.example_batch(looped, jax.random.key(1))
    listed = {
        name: [jax.tree.map(operator.itemgetter(n), value) for n in range(len(value["ln1"]))]
        if isinstance(value, dict)
        else value
        for name, value in params.items()
    }
    shapes = jax.tree.map(jax.numpy.shape, decoder.init(unrolled, jax.random.key(0))["params"])
    assert jax.tree.map(jax.numpy.shape, listed) == shapes
    wanted, found = decoder.loss(looped, params, batch), decoder.loss(unrolled, listed, batch)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
