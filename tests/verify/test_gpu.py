"""Plans compiled for GPUs that are not there; most are skipped without JAX's plugin for CUDA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita import cost
from partita.verify.backends import gpu

needs_compiler = pytest.mark.skipif(
    not gpu.is_installed(), reason="needs pip install 'partita[gpu]'"
)


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def layers(ws, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def train(params, x):
    def loss(params):
        h = jax.nn.relu(x @ params["w"] + params["b"])
        return jnp.mean((h @ params["v"]).astype(jnp.float32) ** 2)

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))


PARAMS = {"w": bf16(1024, 4096), "b": bf16(4096), "v": bf16(4096, 1024)}


def fsdp(hardware, mesh="data=4"):
    return pt.plan(
        layers,
        bf16(5, 8192, 8192),
        bf16(2**16, 8192),
        mesh=mesh,
        hardware=hardware,
        tactics=[pt.ManualPartition({"x": 0}, "data"), pt.ManualPartition({"ws": 1}, "data")],
    )


@pytest.fixture(scope="module")
def verified():
    return fsdp("h100").verify("h100:4")


@needs_compiler
def test_collectives_in_a_loop_are_those_predicted(verified):
    assert verified.passed and not verified.unknown_loops
    assert verified.collectives.equal, f"\n{verified}"
    ((collective, predicted, compiled),) = verified.collectives.rows()
    assert (collective.kind, predicted, compiled) == ("all_gather", 5, 5)


@needs_compiler
def test_arguments_are_those_predicted(verified):
    assert verified.memory.arguments == verified.predicted_memory.arguments


@needs_compiler
@pytest.mark.parametrize("combine", [True, False], ids=["combined", "one by one"])
@pytest.mark.parametrize("zero", [True, False], ids=["fsdp", "data parallel"])
def test_combined_collectives_count_one_by_one(zero, combine):
    """Sums are put one behind the other; what is gathered and scattered becomes a tuple."""
    tactics = [pt.DataParallel("data"), *[pt.FullyShardedDataParallel("data")] * zero]
    plan = pt.plan(train, PARAMS, bf16(4096, 1024), mesh="data=4", hardware="h100", tactics=tactics)
    found = plan.verify("h100:4", combine=combine)
    assert found.collectives.equal, f"\n{found}"


@needs_compiler
@pytest.mark.parametrize("hardware", gpu.kinds())
def test_every_gpu_that_has_a_file_is_compiled_for(hardware):
    plan = pt.plan(
        train,
        jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), PARAMS),
        jax.ShapeDtypeStruct((64, 1024), jnp.float32),
        mesh="data=2,model=2",
        hardware=hardware,
        tactics=[pt.DataParallel("data")],
    )
    assert plan.verify(f"{hardware}:2x2").collectives.equal


@needs_compiler
def test_a_mesh_of_another_size():
    with pytest.raises(pt.MeshError, match=r"mesh data=4 has 4 devices, topology h100:2x8 has 16"):
        fsdp("h100").verify("h100:2x8")


@pytest.mark.parametrize("topology", ["h100", "h100:", "h100:2x2x2", "h100:x8", "h100:-8"])
def test_a_topology_that_is_spelled_otherwise(topology):
    with pytest.raises(pt.VerifyError, match=r"expected a GPU and how many, such as h100:8"):
        fsdp("h100").verify(topology)


def test_what_the_compiler_is_told_of_a_gpu():
    told = gpu.as_proto(cost.load("h100").xla_target, "h100")
    assert "core_count: 132" in told and "device_memory_size: 84942979072" in told
    assert (
        "cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }"
        in told
    )
    assert "rate_infos { key: 16 value { clock_rate_ghz: 1.8295201 units_per_core: 4" in told


def test_a_gpu_of_which_less_is_known():
    told = gpu.as_proto(cost.load("p100").xla_target, "p100")
    assert "major: 6 minor: 0 }" in told and "matrix_unit_description" not in told
