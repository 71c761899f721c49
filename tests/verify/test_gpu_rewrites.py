"""What XLA's GPU compiler makes of collectives: the rules, and single collectives compiled."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import partita as pt
from partita.mesh import Mesh
from partita.verify.backends import gpu
from partita.verify.gpu_rewrites import GPU_REWRITES, on_gpu

needs_compiler = pytest.mark.skipif(
    not gpu.is_installed(), reason="needs pip install 'partita[gpu]'"
)
F32, BF16 = jnp.float32, jnp.bfloat16
TOPOLOGY = "h100:4"


def plan(fn, *args, split="x"):
    tactics = [pt.ManualPartition({split: 0}, "data")]
    return pt.plan(fn, *args, mesh="data=4", hardware="h100", tactics=tactics)


def rewrites(made):
    """Of each collective, the bytes planned and what the compiler may make of it."""
    return [
        (c.bytes, [(b.rewrite, b.collective.bytes, b.of) for b in becomes])
        for c, becomes in zip(made.collectives, on_gpu(made.spmd), strict=True)
    ]


def of_widened(x):
    """Gathers what is only a wider form of `x`, to sort it along that dimension."""
    return jnp.sort(jnp.cos(x).astype(F32), axis=0)


def of_computed(x):
    return jnp.sort(jnp.cos(x.astype(F32)), axis=0)


ROWS = jax.ShapeDtypeStruct((512, 1024), BF16)
WIDE = 512 * 1024 * 4


def stacked(ws, x):
    """A loop that keeps a sum over all rows of every iteration."""

    def layer(h, w):
        h = jnp.tanh(h @ w)
        return h, jnp.sum(h)

    return lax.scan(layer, x, ws)


def summed_up(ws, x):
    """A loop that needs such a sum in the next iteration."""

    def layer(h, w):
        h = jnp.tanh(h @ w)
        return h / jnp.sum(h), None

    return lax.scan(layer, x, ws)[0]


LAYERS = [jax.ShapeDtypeStruct(shape, F32) for shape in ((6, 256, 256), (512, 256))]

RULES = [
    (of_widened, [ROWS], [(WIDE, [("moved narrower", WIDE // 2, 1)])]),
    (of_computed, [ROWS], [(WIDE, [])]),
    (stacked, LAYERS, [(4, [("stacked sums", 24, 6)])]),
    (summed_up, LAYERS, [(4, [])]),
]


@pytest.mark.parametrize(("fn", "args", "expected"), RULES)
def test_rules(fn, args, expected):
    made = plan(fn, *args)
    assert rewrites(made) == expected
    assert {b.rewrite for becomes in on_gpu(made.spmd) for b in becomes} <= set(GPU_REWRITES)


@needs_compiler
@pytest.mark.parametrize(("fn", "args", "expected"), RULES)
def test_the_compiler_does_what_the_rules_say(fn, args, expected):
    found = plan(fn, *args).verify(TOPOLOGY).collectives
    (_, becomes), *_ = expected
    assert found.rewrites == {rewrite: of for rewrite, _, of in becomes}
    assert found.agreement == ("rewritten" if becomes else "equal")


def gather(x):
    return lax.all_gather(x, "x", axis=0, tiled=True)


def exchange(x):
    return lax.all_to_all(x, "x", 1, 0, tiled=True)


def permute(x):
    return lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])


def total(x):
    return lax.psum(x, "x")


@needs_compiler
@pytest.mark.parametrize(
    ("move", "narrow"), [(gather, True), (exchange, True), (permute, True), (total, False)]
)
@pytest.mark.parametrize("widened", [True, False], ids=["of a wider form", "to a narrower form"])
def test_what_only_moves_moves_the_narrower_type(move, narrow, widened):
    def fn(x):
        x = jnp.cos(x)
        return jnp.sin(move(x.astype(F32)) if widened else move(x).astype(BF16))

    backend = gpu.Gpu(TOPOLOGY)
    mesh = backend.device_mesh(Mesh.of("x=4"))
    rows = PartitionSpec("x")
    x = jax.ShapeDtypeStruct(
        (512, 1024), BF16 if widened else F32, sharding=NamedSharding(mesh, rows)
    )
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    text = backend.compile(jax.jit(mapped).lower(x), backend.options()).text
    (moved,) = re.findall(
        r"(f32|bf16)\[[\d,]*\]\S* (?:all-gather|all-to-all|collective-permute|all-reduce)-done",
        text,
    )
    assert moved == ("bf16" if narrow else "f32")
