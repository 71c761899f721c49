"""`ManualPartition` with `PartitionSpec`s, as `jax.jit` takes them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import partita as pt
from checks import numbers, planner, runs_as_the_original

P, OPEN = PartitionSpec, PartitionSpec.UNCONSTRAINED
plan = planner(mesh="data=4,model=2")


def mlp(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


ARGS = {"w1": numbers(32, 64), "w2": numbers(64, 32)}, numbers(16, 32)


def sharded(patterns, *more, **options):
    tactics = [pt.ManualPartition(patterns, **options), *more]
    made = runs_as_the_original(plan(mlp, *ARGS, tactics=tactics), *ARGS)
    (params, x) = made.in_shardings
    return params["w1"], params["w2"], x


@pytest.mark.parametrize(
    ("patterns", "w1", "w2", "x"),
    [
        ({"x": P("data", None)}, P(), P(), P("data")),
        ({"x": P("data"), "*['w1']": P(None, "model")}, P(None, "model"), P("model"), P("data")),
        (
            {"*['w1']": P(None, ("model", "data"))},
            P(None, ("model", "data")),
            P(("model", "data")),
            P(),
        ),
        ({"*['w1']": P(None, "model"), "*['w*']": P()}, P(None, "model"), P(), P()),
    ],
    ids=["one", "several", "axes of one dimension", "the first pattern counts"],
)
def test_a_spec_names_its_axes(patterns, w1, w2, x):
    assert sharded(patterns) == (w1, w2, x)


def test_a_spec_and_a_dimension_together():
    found = sharded({"*['w1']": P(None, "model"), "x": 0}, axis="data")
    assert found == (P(None, "model"), P("model"), P("data"))


@pytest.mark.parametrize(
    ("spec", "after"), [(P("data"), P("data")), (P("data", OPEN), P("data", "model"))]
)
def test_later_tactics_shard_only_what_is_open(spec, after):
    *_, x = sharded({"x": spec}, pt.ManualPartition({"x": 1}, axis="model"))
    assert x == after


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: pt.ManualPartition({"x": 0}), pt.TacticError, "dimensions need an axis"),
        (lambda: sharded({"x": P(None, None, "data")}), pt.SpecError, "has 3 entries"),
        (lambda: sharded({"x": P("data", "data")}), pt.SpecError, "names the axis 'data' twice"),
        (lambda: sharded({"x": P("dat")}), pt.AxisError, "did you mean 'data'"),
        (lambda: sharded({"y": P("data")}), pt.UnknownNameError, "'y' matches no argument"),
    ],
    ids=["no axis", "entries", "twice", "axis", "pattern"],
)
def test_specs_that_do_not_fit(make, error, message):
    with pytest.raises(error, match=message):
        make()
