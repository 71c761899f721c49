"""What XLA's GPU compiler stores: the experiments behind the rules of the hardware files."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import gpu_kernels
from partita.mesh import Mesh
from partita.verify.backends import gpu
from partita.verify.hlo import parse

pytestmark = pytest.mark.skipif(not gpu.is_installed(), reason="needs pip install 'partita[gpu]'")

_ARRAY = re.compile(r"(bf16|f32)\[([\d,]*)\]")


def compiled(device, fn, *types):
    """What the compiler makes of a function for one device."""
    backend = gpu.Gpu(f"{device}:1")
    mesh = backend.device_mesh(Mesh.of("x=1"))
    options = backend.options() | {"xla_gpu_enable_analytical_sol_latency_estimator": False}
    args = [_argument(type_, NamedSharding(mesh, PartitionSpec())) for type_ in types]
    return backend.compile(jax.jit(fn).lower(*args), options)


def _argument(type_, sharding):
    dtype, shape = type_.rstrip("]").split("[")
    names = {"bf16": jnp.bfloat16, "f32": jnp.float32, "i32": jnp.int32}
    return jax.ShapeDtypeStruct(tuple(map(int, shape.split(","))), names[dtype], sharding=sharding)


def written(text):
    """Type and number of elements of every array that a kernel of a compiled program writes."""
    module = parse(text)
    kernels = [
        i for i in module.computations[module.entry] if i.opcode in ("fusion", "custom-call")
    ]
    return [
        gpu_kernels.size(f"{dtype} {shape.replace(',', 'x') or 1}")
        for kernel in kernels
        for dtype, shape in _ARRAY.findall(kernel.type)
    ]


@pytest.mark.parametrize(
    ("device", "experiment"),
    [(device, each) for each in gpu_kernels.EXPERIMENTS for device in each.devices],
    ids=str,
)
def test_stored_arrays(device, experiment):
    text = compiled(device, experiment.fn, *experiment.types).text
    assert gpu_kernels.large(written(text), experiment) == gpu_kernels.expected(experiment)
