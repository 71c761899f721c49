"""What lies in memory at the peak, and what it is for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import array
from partita import models
from partita.models.strategies import data_parallel, fsdp


def step(state, x):
    """A train step with momentum."""

    def loss(w):
        return (jnp.tanh(x @ w) ** 2).sum()

    gradient = jax.grad(loss)(state["w"])
    velocity = 0.9 * state["velocity"] + gradient
    return {"w": state["w"] - 0.1 * velocity, "velocity": velocity}


STATE, X = {"w": array(128, 256), "velocity": array(128, 256)}, array(32, 128)


def planned(*tactics, fn=step, args=None, donate=0, mesh="data=4"):
    args = args or (STATE, X)
    return pt.plan(fn, *args, mesh=mesh, hardware="tpu_v5e", tactics=tactics, donate_argnums=donate)


@pytest.mark.parametrize("donate", [0, ()], ids=["donated", "not donated"])
def test_arguments_are_told_apart_by_what_reads_them(donate):
    memory = planned(donate=donate).memory()
    weight = 128 * 256 * 4
    assert memory.breakdown["parameters"] == weight
    assert memory.breakdown["optimizer state"] == weight
    assert memory.breakdown["inputs"] == 32 * 128 * 4


def test_what_is_alive_at_the_peak_adds_up_to_it():
    plan = planned(pt.ManualPartition({"x": 0}, "data"))
    memory = plan.memory()
    assert memory.peak == plan.estimate.peak_memory
    assert sum(memory.breakdown.values()) == memory.peak
    assert sum(item.bytes for item in memory.alive) == memory.peak
    assert memory.peak == max(sum(memory.timeline.values()))


def test_values_are_named_with_their_lines():
    memory = planned().memory()
    (hidden,) = (item for item in memory.alive if item.kind == "activations")
    assert hidden.value.startswith("tanh at ")
    assert "test_footprint.py:" in hidden.source
    assert hidden.bytes == 32 * 256 * 4


def test_gathered_weights_are_a_kind_of_their_own():
    sharded = pt.ManualPartition({"*['w']": 0}, "data")
    memory = planned(pt.ManualPartition({"x": 0}, "data"), sharded).memory()
    assert memory.breakdown["gathered copies"] >= 128 * 256 * 4
    assert memory.breakdown["parameters"] == 128 * 256 * 4 / 4


def test_a_gradient_that_waits_for_its_update_is_a_gradient():
    def two(state, x):
        gradients = jax.grad(lambda w: ((x @ w["a"]) @ w["b"]).sum() ** 2)(state)
        norm = sum((g**2).sum() for g in gradients.values())
        return {name: state[name] - gradients[name] / norm for name in state}

    state = {"a": array(128, 256), "b": array(256, 128)}
    memory = planned(fn=two, args=(state, X)).memory()
    assert memory.breakdown["gradients"] == 2 * 128 * 256 * 4


@pytest.mark.parametrize("preset", ["gpt-tiny", "moe-tiny", "unet-tiny", "decode-tiny"])
def test_the_parts_add_up_for_real_models(preset):
    model = models.build(preset)
    plan = planned(data_parallel(), fsdp(), fn=model.fn, args=model.args, mesh="data=8")
    memory = plan.memory()
    assert memory.peak == plan.estimate.peak_memory
    assert sum(memory.breakdown.values()) == pytest.approx(memory.peak, abs=len(memory.breakdown))


def test_a_picture_is_drawn(tmp_path):
    memory = planned().memory()
    memory.picture(tmp_path / "memory.svg")
    assert "activations" in (tmp_path / "memory.svg").read_text()
    with pytest.raises(pt.FileError, match="cannot write the picture"):
        memory.picture(tmp_path / "no" / "memory.svg")
    with pytest.raises(pt.FileError, match="cannot write the picture"):
        memory.picture(tmp_path / "memory.doc")


def test_the_timeline_covers_every_kernel():
    plan = planned()
    timeline = plan.memory().timeline
    assert {len(row) for row in timeline.values()} == {
        len(plan.done.stage.context.timing.fusion.kernels) + 3
    }
    assert all(np.all(row >= 0) for row in timeline.values())
