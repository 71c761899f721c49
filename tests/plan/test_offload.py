"""Values in the memory of the host: no memory of devices, moved over a link of their own."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, assert_same, numbers, planner
from partita.cost import device_types, load

MESH = "data=4"
plan = planner(mesh=MESH)
DEVICE, HOST = jax.memory.Space.Device, jax.memory.Space.Host
OFFLOAD = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden"],
    offload_src="device",
    offload_dst="pinned_host",
)
SAVE = jax.checkpoint_policies.save_only_these_names("hidden")
LINK = 1.5e10
"""Bytes/s of a TPU v5e's link to its host."""


def in_host(*shape, spec=None, kind="pinned_host"):
    """An abstract argument in the memory of the host."""
    mesh = AbstractMesh((4,), ("data",))
    sharding = NamedSharding(mesh, spec or P(), memory_kind=kind)
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def update(moments, gradient):
    """An optimizer whose moments lie with the host."""
    new = jax.device_put(moments, DEVICE) * 0.9 + gradient
    return jax.device_put(new, HOST), gradient - new


def gradients(policy):
    def layer(x, w):
        return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "hidden"))

    def loss(weights, x):
        body = jax.checkpoint(layer, policy=policy)
        return jnp.sum(jax.lax.scan(lambda h, w: (body(h, w), None), x, weights)[0] ** 2)

    return jax.grad(loss)


ROWS = pt.ManualPartition({"x": 0}, axis="data")
STACK = 6 * 64 * 128 * 4 // 4
"""Bytes per device of the hidden values of all layers."""


def test_a_policy_that_offloads_keeps_its_values_off_the_devices():
    args = array(6, 128, 128), array(64, 128)
    kept = plan(gradients(SAVE), *args, tactics=[ROWS]).estimate
    moved = plan(gradients(OFFLOAD), *args, tactics=[ROWS]).estimate
    assert kept.peak_memory - moved.peak_memory >= STACK * 0.99
    assert (kept.host_memory, kept.offloaded.count) == (0, 0)
    assert STACK <= moved.host_memory <= STACK * 1.5
    assert moved.offloaded.count == 2 * 6
    assert moved.offloaded.bytes == 2 * STACK
    assert moved.offloaded.seconds == pytest.approx(2 * STACK / LINK)
    assert moved.step_time > kept.step_time


def test_it_runs_on_a_host_as_the_original():
    """A host has one memory, and the values are the same."""
    args = numbers(6, 16, 16), numbers(8, 16)
    made = plan(gradients(OFFLOAD), *args, tactics=[ROWS])
    assert_same(made.jit()(*made.shard(*args)), gradients(OFFLOAD)(*args), 1e-4)
    assert made.verify().passed


def test_what_no_other_work_hides_is_exposed():
    """Between the move and its use lies too little; a hundred products hide it."""

    def near(x, w):
        return jax.device_put(x, DEVICE) @ w

    def far(x, w):
        h = w
        for _ in range(100):
            h = jnp.tanh(h @ w)
        return jax.device_put(x, DEVICE) @ h

    size = 512 * 512 * 4
    waits, hides = (
        plan(f, in_host(512, 512), array(512, 512), mesh="data=1").estimate for f in (near, far)
    )
    assert waits.exposed_time == pytest.approx(size / LINK)
    assert waits.hidden_time == 0
    assert hides.exposed_time == 0
    assert hides.hidden_time == pytest.approx(size / LINK)
    assert hides.link_times[-1] == hides.hidden_time


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_arguments_of_the_host_keep_their_memory(kind):
    x = numbers(8, 4)
    pinned = kind == "pinned_host"  # as the result is, so that it may take over the buffer
    args = in_host(8, 4, spec=P("data"), kind=kind), array(8, 4)
    made = plan(update, *args, donate_argnums=0 if pinned else ())
    assert made.program.aliases == ({0: 0} if pinned else {})
    assert made.program.argument_memory == {0: kind}
    assert made.program.result_memory == {0: "pinned_host"}
    placed = made.shard(x, x)
    assert [each.sharding.memory_kind for each in placed] == [kind, "device"]
    results = made.jit()(*placed)
    assert [each.sharding.memory_kind for each in results] == ["pinned_host", "device"]
    assert [each.sharding.spec for each in results] == [P("data"), P("data")]
    assert_same(list(map(jnp.asarray, results)), [1.9 * x, x - 1.9 * x])
    again = made.jit()(results[0], placed[1]) if pinned else results
    assert again[0].sharding.memory_kind == "pinned_host"


def test_arguments_of_the_host_take_no_memory_of_devices():
    size = 4096 * 1024 * 4 // 4
    made = plan(update, in_host(4096, 1024, spec=P("data")), array(4096, 1024))
    there = plan(
        lambda m, g: (0.9 * m + g, g - 0.9 * m),
        array(4096, 1024),
        array(4096, 1024),
        tactics=[pt.ManualPartition({"m": 0}, axis="data")],
    )
    assert made.estimate.argument_memory == there.estimate.argument_memory - size
    assert made.estimate.host_memory == 2 * size
    assert made.estimate.offloaded.bytes == 2 * size
    assert made.memory().peak == made.estimate.peak_memory
    assert f"host memory  {2 * size / 2**20:.1f} MiB" in str(made)


def test_an_array_of_the_host_is_known_by_where_it_lies():
    """`pt.jit` plans anew for one that lies elsewhere."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.asarray(numbers(8, 4))
    there = jax.device_put(x, NamedSharding(mesh, P("data"), memory_kind="pinned_host"))
    double = lambda x: jax.device_put(x, DEVICE) * 2  # noqa: E731
    step = pt.jit(double, mesh=MESH, hardware="cpu", tactics=[ROWS])
    assert_same(step(there), 2 * x)
    assert_same(step(x), 2 * x)
    first, second = step.plans.values()
    assert (first.program.argument_memory, second.program.argument_memory) == (
        {0: "pinned_host"},
        {},
    )


def test_memories_of_the_users_own_jit_are_kept():
    sharding = NamedSharding(jax.make_mesh((4,), ("data",)), P("data"), memory_kind="pinned_host")
    own = jax.jit(lambda x: jax.device_put(x, DEVICE) * 2, in_shardings=sharding)
    made = plan(own, in_host(8, 4, spec=P("data")))
    assert made.program.argument_memory == {0: "pinned_host"}
    assert made.in_shardings == (P("data"),)


def test_a_plan_of_offloaded_values_is_saved_and_loaded(tmp_path):
    args = in_host(8, 4, spec=P("data")), array(8, 4)
    made = plan(update, *args)
    made.save(tmp_path / "plan.json")
    again = pt.load(tmp_path / "plan.json", update, *args)
    assert again.estimate == made.estimate
    assert again.history[0].estimate == made.history[0].estimate


@pytest.mark.parametrize("name", device_types())
def test_every_device_type_has_a_link_to_its_host(name):
    hardware = load(name)
    assert 0 < hardware.host_bandwidth.value <= hardware.memory_bandwidth.value
    assert "as the file states none" not in hardware.host_bandwidth.source
