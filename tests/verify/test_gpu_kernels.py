"""What XLA's GPU compiler stores: the experiments behind the rules of the hardware files."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import gpu_kernels
import partita as pt
from partita import models
from partita.mesh import Mesh
from partita.models.strategies import data_parallel
from partita.verify.backends import gpu
from partita.verify.hlo import parse

pytestmark = pytest.mark.skipif(not gpu.is_installed(), reason="needs pip install 'partita[gpu]'")

PLAIN = {"xla_gpu_enable_analytical_sol_latency_estimator": False}
"""The order of kernels without the scheduler of newer GPUs, which keeps more in memory."""

_ARRAY = re.compile(r"(bf16|f32)\[([\d,]*)\]")


def compiled(device, fn, *types):
    """What the compiler makes of a function for one device."""
    backend = gpu.Gpu(f"{device}:1")
    mesh = backend.device_mesh(Mesh.of("x=1"))
    options = backend.options() | PLAIN
    args = [_argument(type_, NamedSharding(mesh, PartitionSpec())) for type_ in types]
    return backend.compile(jax.jit(fn).lower(*args), options)


def _argument(type_, sharding):
    dtype, shape = type_.rstrip("]").split("[")
    names = {"bf16": jnp.bfloat16, "f32": jnp.float32, "i32": jnp.int32}
    return jax.ShapeDtypeStruct(tuple(map(int, shape.split(","))), names[dtype], sharding=sharding)


def entry(text):
    """The instructions of a compiled program outside of its loops, in the order in which they run,
    each with the type and the number of elements of every array that it makes."""
    module = parse(text)
    return [
        (
            instruction.opcode,
            [
                gpu_kernels.size(f"{dtype} {shape.replace(',', 'x') or 1}")
                for dtype, shape in _ARRAY.findall(instruction.type)
            ],
        )
        for instruction in module.computations[module.entry]
    ]


def written(text):
    """Type and number of elements of every array that a kernel of a compiled program writes."""
    made = (arrays for opcode, arrays in entry(text) if opcode in ("fusion", "custom-call"))
    return [each for arrays in made for each in arrays]


def places(text, opcode, array=None):
    """The places of some instructions in the order: those that make an array, if one is named."""
    return [
        place
        for place, (each, arrays) in enumerate(entry(text))
        if each == opcode and (array is None or gpu_kernels.size(array) in arrays)
    ]


@pytest.mark.parametrize(
    ("device", "experiment"),
    [(device, each) for each in gpu_kernels.EXPERIMENTS for device in each.devices],
    ids=str,
)
def test_stored_arrays(device, experiment):
    text = compiled(device, experiment.fn, *experiment.types).text
    assert gpu_kernels.large(written(text), experiment) == gpu_kernels.expected(experiment)


@pytest.mark.parametrize("device", gpu_kernels.COSTLY)
@pytest.mark.parametrize("operation", gpu_kernels.OPERATIONS)
def test_what_takes_long_is_not_computed_twice(operation, device):
    text = compiled(device, gpu_kernels.reduced_twice(operation), "f32[4096,4096]").text
    stored = ("f32", 4096**2) in written(text)
    assert stored == (operation in gpu_kernels.COSTLY[device])


@pytest.mark.parametrize(("device", "row", "stored"), gpu_kernels.ROWS_OF_SOFTMAX)
def test_softmax_of_a_row_that_is_mostly_padding(device, row, stored):
    text = compiled(device, gpu_kernels.attention, *[f"bf16[4,{row},128]"] * 3).text
    assert (("f32", 4 * row * row) in written(text)) == stored


def test_a_product_that_only_a_scatter_changes_is_made_just_before_it():
    text = compiled("h100", gpu_kernels.rows_added, *gpu_kernels.ROWS_ADDED).text
    (loop,) = places(text, "while")
    (product,) = places(text, "custom-call", "bf16 2048x32768")
    assert product > loop


def test_a_train_step_writes_zeros_before_its_loops():
    """Those that gradients are added to, too, which the second loop needs and what is behind it.
    Where little else is there to do, the compiler writes zeros only when they are needed."""
    model, backend = models.build("llama-tiny"), gpu.Gpu("h100:2")
    plan = pt.plan(
        *[model.fn, *model.args],
        mesh="data=2",
        hardware="h100",
        tactics=[data_parallel()],
        donate_argnums=model.donate_argnums,
    )
    options = backend.options() | PLAIN
    text = backend.compile(plan.lower(backend.device_mesh(plan.mesh)), options).text
    loops = places(text, "while")
    for gradient in ("bf16 512x64", "f32 2x128x64"):  # of the embedding, of a stack
        assert len(loops) == 2 and places(text, "fusion", gradient)[0] < loops[0]


def test_a_loop_converts_the_layers_of_a_stack_one_by_one():
    text = compiled("h100", gpu_kernels.narrowed, *gpu_kernels.NARROWED).text
    assert not places(text, "fusion", "bf16 7x2048x2048")


def test_what_lies_otherwise_is_laid_anew_in_the_type_it_is_read_in():
    fn = gpu_kernels.gradients(gpu_kernels.grouped_attention)
    text = compiled("h100", fn, *gpu_kernels.GROUPED).text
    assert len(places(text, "fusion", "f32 4x8x1024x1024")) == 1


def test_without_arithmetic_in_bf16_what_is_stored_for_it_is_f32():
    text = compiled("a100_80gb", gpu_kernels.gradients(gpu_kernels.gelu), *gpu_kernels.GELU).text
    assert len(places(text, "fusion", "f32 4096x8192")) == 1


def layered(dim):
    """What the compiler makes of a train step with a stack of layers."""
    plan, backend = gpu_kernels.layered(dim), gpu.Gpu("h100:2")
    options = backend.options() | PLAIN
    return backend.compile(plan.lower(backend.device_mesh(plan.mesh)), options).text


@pytest.mark.parametrize(("dim", "laid"), [(1, 0), (2, 1)])
def test_a_stack_is_laid_anew_for_loops_that_gather_along_an_inner_dimension(dim, laid):
    text = layered(dim)
    forward, _ = places(text, "while")
    moved = [place for place in places(text, "fusion", "f32 4x512x1024") if place < forward]
    assert len(moved) == laid


def test_a_loop_reduces_the_gradient_of_a_layer_one_iteration_late():
    text = layered(1)
    assert max(places(text, "reduce-scatter-start")) > max(places(text, "while"))
