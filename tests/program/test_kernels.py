"""Pallas kernels and other calls that a program can hold: run whole, or refused with a message."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from partita.errors import TraceError, UnsupportedError
from partita.stablehlo import versions
from partita.stablehlo.importer import import_stablehlo


def add_one(source, target):
    target[...] = source[...] + 1


def kernel(x, interpret=False):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(add_one, out_shape=shape, interpret=interpret)(x)


GPU = pytest.mark.skipif(versions.JAX >= (0, 11), reason="Pallas lowers to it only where a GPU is")


@pytest.mark.filterwarnings("ignore:Using ``pl.pallas_call`` for Mosaic GPU:DeprecationWarning")
@pytest.mark.parametrize(
    ("platform", "target"),
    [("tpu", "tpu_custom_call"), pytest.param("cuda", "mosaic_gpu_v2", marks=GPU)],
)
def test_a_kernel_is_one_operation_that_is_run_whole(platform, target):
    x = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    lowered = jax.jit(kernel).trace(x).lower(lowering_platforms=(platform,))
    (op,) = import_stablehlo(lowered.as_text()).operations
    assert op.target == target
    assert op.title == ("kernel add_one" if platform == "tpu" else f"custom_call {target}")
    assert not op.rule.known


def test_a_kernel_for_gpus_is_one_operation_that_is_run_whole():
    text = (
        "module { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { "
        "%0 = stablehlo.custom_call @mosaic_gpu_v2(%x) : (tensor<4xf32>) -> tensor<4xf32> "
        "return %0 : tensor<4xf32> } }"
    )
    (op,) = import_stablehlo(text).operations
    assert op.title == "custom_call mosaic_gpu_v2"
    assert not op.rule.known


def test_an_interpreted_kernel_is_a_program_like_others(program):
    p = program(lambda x: kernel(x, interpret=True), "f32[16,128]")
    assert all(op.rule.known for op in p.operations)


def test_a_kernel_for_other_devices_than_those_at_hand(program):
    with pytest.raises(TraceError, match=r"cannot lower kernel for cpu: .*interpret mode"):
        program(kernel, "f32[16,128]")


def test_a_custom_partitioning_call_is_refused():
    text = (
        "module { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { "
        "%0 = stablehlo.custom_call @CustomSPMDPartitioning(%x) : "
        "(tensor<4xf32>) -> tensor<4xf32> return %0 : tensor<4xf32> } }"
    )
    with pytest.raises(
        UnsupportedError, match=r"custom_partitioning function.*plan the JAX function"
    ):
        import_stablehlo(text)
