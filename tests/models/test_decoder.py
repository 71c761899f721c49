"""Decoders are one model with options: its parts are sized by name."""

from __future__ import annotations

import pytest

import partita as pt
from partita import models


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
