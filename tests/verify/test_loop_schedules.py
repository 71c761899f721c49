"""What XLA's compilers run beside the collectives in the bodies of loops: small loops, compiled."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from partita.verify.backends import backend_for, gpu
from partita.verify.compile import compiler_options
from partita.verify.hlo import Computation, HloModule, parse

needs_gpu = pytest.mark.skipif(not gpu.is_installed(), reason="needs pip install 'partita[gpu]'")
needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs pip install 'partita[tpu]'"
)
BEFORE_HOPPER = ("xla_gpu_enable_analytical_sol_latency_estimator=false",)
START, DONE, PRODUCT, GATHER = "start", "done", "product", "gather"
BESIDE = [START, PRODUCT, DONE]


def gathering(width):
    """A loop of which each iteration gathers three weights, and a batch along the same axis."""

    def fn(ws, x):
        def layer(h, w):
            for each in w:
                h = jnp.tanh(h @ each)
            return h, None

        return lax.scan(layer, x, ws)[0]

    tactics = [pt.ManualPartition({"x": 0}, "x"), pt.ManualPartition({"ws*": 2}, "x")]
    return fn, [array(6, width, width)] * 3, array(8192, width), tactics


def summing():
    """A loop of which each iteration ends with a sum over devices, which is added to a residual."""

    def fn(ws, x):
        def layer(h, w):
            return h + jnp.tanh(h @ w[0]) @ w[1], None

        return lax.scan(layer, x, ws)[0]

    ws = [array(6, 2048, 4096), array(6, 4096, 2048)]
    return fn, ws, array(8192, 2048), [pt.ManualPartition({"ws[[]0]": 2}, "x")]


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def body(loop, topology, options=()):
    """What the body of the loop does, in order, as compiled."""
    fn, ws, x, tactics = loop
    backend = backend_for(topology)
    plan = pt.plan(fn, ws, x, mesh="x=4", hardware=backend.device_type, tactics=tactics)
    told = backend.options() | compiler_options(options)
    module = parse(backend.compile(plan.lower(backend.device_mesh(plan.mesh)), told).text)
    found = (events(module, each) for each in module.computations.values())
    return next(each for each in found if each.count(PRODUCT) == len(ws))


def events(module: HloModule, computation: Computation) -> list[str]:
    if computation.name == module.entry:
        return []
    kinds = (event(module, each) for each in computation)
    return [kind for kind in kinds if kind]


def event(module, instruction):
    """What an instruction is.

    A TPU's compiler starts a gather in a fusion of its own, and has it go on in those of products.
    """
    inside = [
        each
        for _, name in instruction.called
        for each in module.computations[name]
        if instruction.opcode == "fusion"
    ]
    text = "".join(each.opcode + each.attributes for each in [instruction, *inside])
    if "AsyncCollectiveStart" in text or instruction.opcode.endswith("-start"):
        return START
    if "AsyncCollectiveDone" in text or instruction.opcode.endswith("-done"):
        return DONE
    if "convolution" in text or "__cublas" in text:
        return PRODUCT
    return GATHER if instruction.opcode == "all-gather" else None


@needs_gpu
def test_on_hopper_a_product_hides_what_the_next_one_needs():
    assert body(gathering(4096), "h100:4") == [START, DONE, *BESIDE, *BESIDE, PRODUCT]


@needs_gpu
def test_on_gpus_what_is_gathered_together_is_there_for_the_first_product():
    assert body(gathering(2048), "h100:4") == [START, DONE, PRODUCT, PRODUCT, PRODUCT]


@needs_gpu
@pytest.mark.parametrize(("topology", "options"), [("h100:4", BEFORE_HOPPER), ("a100_80gb:4", ())])
@pytest.mark.parametrize("loop", [gathering(4096), summing()], ids=["gathering", "summing"])
def test_before_hopper_what_is_started_is_waited_for(loop, topology, options):
    found = body(loop, topology, options)
    assert all(found[i + 1] == DONE for i, each in enumerate(found) if each == START)


@needs_gpu
def test_the_sum_that_a_body_ends_with_is_waited_for():
    assert body(summing(), "h100:4") == [PRODUCT, PRODUCT, START, DONE]


@needs_tpu
def test_on_v5e_a_product_hides_what_the_next_one_needs():
    assert body(gathering(2048), "v5e:2x2") == [GATHER, *BESIDE, *BESIDE, PRODUCT]


@needs_tpu
def test_on_v6e_gathers_are_waited_for():
    assert body(gathering(2048), "v6e:2x2") == [GATHER, PRODUCT] * 3
