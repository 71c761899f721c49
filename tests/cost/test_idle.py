"""Idle axes: those along which all devices do the same work."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import partita as pt
from checks import array, planner

plan = planner(mesh="data=4,model=2")


def layer(w, x):
    return jnp.tanh(x @ w)


ARGS = (array(64, 32), array(16, 64))
ROWS = pt.ManualPartition({"x": 0}, axis="data")
COLUMNS = pt.ManualPartition({"w": 1}, axis="model")


@pytest.mark.parametrize(
    ("tactics", "names"),
    [
        ((), ["data", "model"]),
        ((ROWS,), ["model"]),
        ((COLUMNS,), ["data"]),
        ((ROWS, COLUMNS), []),
    ],
)
def test_an_axis_is_idle_if_no_work_is_divided_along_it(tactics, names):
    found = plan(layer, *ARGS, tactics=tactics)
    assert [axis.name for axis in found.idle_axes] == names
    assert not any(axis.shards_memory for axis in found.idle_axes)


def test_a_contraction_that_is_split_divides_work():
    found = plan(layer, *ARGS, tactics=[pt.ManualPartition({"w": 0}, axis="model")])
    assert [axis.name for axis in found.idle_axes] == ["data"]


def test_an_axis_of_one_device_is_never_idle():
    assert not plan(layer, *ARGS, mesh="data=1").idle_axes


def test_an_axis_that_shards_arrays_but_no_work_saves_memory_only():
    """The argument is gathered before the only operation that uses it."""
    found = pt.simulate(
        lambda x: jnp.sort(x, 0),
        array(64, 32),
        mesh="data=4,model=2",
        hardware="tpu_v5e",
        in_shardings={"x": PartitionSpec("data")},
        out_shardings={"result": PartitionSpec()},
    )
    first, second = found.idle_axes
    assert (first.name, first.size, first.shards_memory) == ("data", 4, True)
    assert (second.name, second.size, second.shards_memory) == ("model", 2, False)
    assert str(first) == "data: shards memory only: its 4 devices do the same work"
    assert str(second) == "model: its 2 devices do the same work"


def test_collectives_of_a_manual_computation_make_an_axis_busy():
    """Whatever comes in and goes out replicated, devices do different things in between."""
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))

    def inside(x):
        return jax.lax.psum(x, "data")

    def fn(x):
        whole = PartitionSpec()
        return jax.shard_map(inside, mesh=mesh, in_specs=whole, out_specs=whole)(x)

    assert [axis.name for axis in plan(fn, array(16, 64)).idle_axes] == ["model"]
