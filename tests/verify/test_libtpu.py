"""Plans compiled for TPUs that are not there. Skipped where libtpu is not installed."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita.verify import OutOfMemoryError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs pip install 'partita[tpu]'"
)


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def layers(ws, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def fsdp():
    return pt.plan(
        layers,
        bf16(5, 8192, 8192),
        bf16(2**16, 8192),
        mesh="data=4",
        hardware="tpu_v5e",
        tactics=[pt.ManualPartition({"x": 0}, "data"), pt.ManualPartition({"ws": 1}, "data")],
    )


@pytest.fixture(scope="module")
def verified():
    return fsdp().verify("v5e:2x2")


def test_collectives_in_a_loop_are_those_predicted(verified):
    assert verified.passed and not verified.unknown_loops
    assert verified.collectives.equal, f"\n{verified}"
    ((collective, predicted, compiled),) = verified.collectives.rows()
    assert (collective.kind, predicted, compiled) == ("all_gather", 5, 5)


def test_a_plan_can_be_compiled_again(verified):
    """JAX's compilation cache, which the tests have, cannot read what it has kept for a TPU."""
    assert fsdp().verify("v5e:2x2").memory == verified.memory


def test_memory_is_near(verified):
    assert verified.memory.arguments == verified.predicted_memory.arguments
    assert verified.predicted_memory.peak == pytest.approx(verified.memory.peak, rel=0.4)


def test_the_compiler_tells_a_time(verified):
    flops = 5 * 2 * (2**16 // 4) * 8192 * 8192
    least = flops / verified.plan.hardware.flops("bf16")
    assert least < verified.time.compute_time < 5 * least


def test_a_program_that_does_not_fit_is_a_result():
    big = pt.plan(
        lambda x: jnp.sort(x, axis=0) + x,
        jax.ShapeDtypeStruct((2**16, 2**16), jnp.float32),
        mesh="data=4",
        hardware="tpu_v5e",
        memory="100GiB",
        tactics=[],
    )
    found = big.verify("v5e:2x2")
    assert found.estimate.fits and not found.passed
    assert isinstance(found.out_of_memory, OutOfMemoryError)
    assert found.out_of_memory.capacity == pytest.approx(big.hardware.memory.value, rel=0.01)
    assert found.out_of_memory.used > 2 * 2**34
    assert "runs out of memory" in str(found)


def test_of_candidates_and_a_plan_by_hand_the_quickest_is_taken_whatever_was_predicted():
    def train(w, x):
        return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    def planned(*tactics):
        args = bf16(2048, 2048), bf16(8192, 2048)
        return pt.plan(train, *args, mesh="data=4", hardware="tpu_v5e", tactics=tactics)

    by_hand = planned(pt.ManualPartition({"x": 0}, "data"))
    plan = planned(pt.AutomaticPartition(budget=100))
    found = pt.confirm(plan, "v5e:2x2", count=3, others=by_hand)
    assert len(found.plans) == 4 and found.plans[-1].plan is by_hand
    times = [each.step_time for each in found.plans]
    assert all(each.fits for each in found.plans) and min(times) > 0 and len(set(times)) > 1
    assert found.taken.step_time == min(times)
    assert found.plans[0].step_time == plan.verify("v5e:2x2").time.step_time
    assert found.plan.history and "taken" in str(found)


@pytest.mark.parametrize(
    ("topology", "error", "message"),
    [
        ("v5e:2x4", pt.MeshError, "mesh data=4 has 4 devices, topology v5e:2x4 has 8"),
        ("v9e:2x2", pt.VerifyError, "knows no topology 'v9e:2x2'.*v5e:4x8.*TPUs: v3, v4, v5e"),
        ("v5e:3x5", pt.VerifyError, "knows no topology 'v5e:3x5'"),
        ("v6e:2x2", pt.HardwareError, "the plan is for tpu_v5e.*hardware='tpu_v6e'"),
    ],
)
def test_topologies_that_do_not_fit(topology, error, message):
    with pytest.raises(error, match=message):
        fsdp().verify(topology)
