"""`Pinned`: an axis that stops at named values, which later tactics may split along it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import partita as pt
from partita.tactics.pinned import Pinned

ROWS = pt.ManualPartition({"y": 0}, axis="x")
COLUMNS = pt.ManualPartition({"w": 1}, axis="x")


def fn(x, w, y):
    """Columns of `w` before the name, rows of `y` behind it."""
    return jnp.sin(checkpoint_name(x @ w, "hidden")) * y


def planned(*tactics):
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 4), (4, 8), (8, 8))]
    return pt.plan(fn, *args, mesh="x=4", hardware="cpu", tactics=tactics)


def kinds(plan):
    return [c.kind for c in plan.collectives]


def test_the_axis_stops_at_the_name():
    assert planned(ROWS).in_shardings[0] == jax.P("x")
    plan = planned(Pinned(ROWS, at=("hidden",)))
    assert plan.in_shardings == (jax.P(), jax.P(), jax.P("x"))
    assert "hidden" not in plan.history[0].tiled


def test_a_later_tactic_may_split_the_named_value_and_it_is_exchanged():
    plan = planned(Pinned(ROWS, at=("hidden",)), COLUMNS)
    assert plan.history[1].tiled["hidden"] == (None, "x")
    assert kinds(plan) == ["all_to_all"]
    args = [jax.random.normal(jax.random.key(n), s.shape) for n, s in enumerate(plan.arguments[0])]
    np.testing.assert_allclose(plan.jit()(*args), fn(*args), rtol=1e-5, atol=1e-6)


def test_what_is_replicated_for_good_stays_so():
    keep = pt.ManualPartition({"hidden": "replicate"}, axis="x")
    plan = planned(keep, Pinned(ROWS, at=("hidden",)), COLUMNS)
    assert "hidden" not in plan.history[2].tiled
    both = pt.ManualPartition({"hidden": "replicate", "y": 0}, axis="x")
    assert "hidden" not in planned(Pinned(both, at=("w",)), COLUMNS).history[1].tiled


def test_names_and_axes_are_checked():
    with pytest.raises(pt.UnknownNameError, match="'hiden' matches no argument"):
        planned(Pinned(ROWS, at=("hiden",)))
    with pytest.raises(pt.AxisError):
        planned(Pinned(pt.ManualPartition({"y": 0}, axis="z"), at=("hidden",)))
