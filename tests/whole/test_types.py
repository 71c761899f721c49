"""Element types: small programs of every type that XLA's CPU backend has, and their sizes.

Exact: values are zeros and ones, and few enough are summed for every type to hold the sum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from partita.verify import compare

FLOATS = [name for name in dir(jnp) if name.startswith(("float8", "float4"))]
NARROW = ["int2", "uint2", "int4", "uint4"]
COMMON = """bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64
complex64 complex128""".split()
BITS = {"bool": 8, "bfloat16": 16} | {
    name: int("".join(c for c in name.partition("_")[0] if c.isdigit()))
    for name in (*FLOATS, *NARROW, *COMMON)
    if name not in ("bool", "bfloat16")
}


@pytest.fixture(autouse=True)
def wide_types():
    with jax.enable_x64(True):
        yield


def program(x, w, rows):
    """Elementwise, product, reduction, look-up and a merge, as far as a type has them."""
    dtype = x.dtype
    done = {"chosen": jnp.where(rows[:, None] > 4, x, x[:1]), "merged": x.T.reshape(-1)}
    done["read"] = x[rows]
    if dtype != jnp.bool_:
        done["sum"] = lax.reduce(x[:6], jnp.zeros((), dtype), lax.add, (0,))
        done["doubled"] = x + x
    if dtype.kind not in "b" and BITS[dtype.name] >= 8:
        done["product"] = lax.dot(x[:, :4], w[:4], preferred_element_type=dtype)
    if dtype.kind != "c":
        done["largest"] = jnp.max(x, 0)
    return done


def arguments(name):
    rng, dtype = np.random.default_rng(0), jnp.dtype(name)
    ones = rng.integers(0, 2, (16, 8)) * (np.arange(16) % 3 == 0)[:, None]
    if dtype.kind == "c":
        ones = ones * (1 - 1j)
    x, w = jnp.asarray(ones).astype(dtype), jnp.ones((8, 8), dtype)
    return x, w, jnp.asarray(rng.integers(0, 16, 16), jnp.int32)


# XLA's CPU backend gathers no two-bit integers over devices: it ends the process.
@pytest.mark.parametrize("name", [*COMMON, "int4", "uint4", *FLOATS])
def test_types(name):
    args = arguments(name)
    tactics = [pt.ManualPartition({"x": dim}, axis) for dim, axis in ((0, "a"), (1, "b"))]
    plan = pt.plan(program, *args, mesh="a=2,b=4", hardware="cpu", tactics=tactics)
    ours, theirs = plan.jit()(*args), jax.jit(program)(*args)
    for what, their in theirs.items():
        assert ours[what].dtype == their.dtype
        wide = np.complex128 if their.dtype.kind == "c" else np.float64
        np.testing.assert_array_equal(ours[what].astype(wide), their.astype(wide), what)
    if name in COMMON and name != "bfloat16":  # which the CPU backend exchanges as float32
        compiled = plan.jit().lower(*plan.shard(*args)).compile()
        comparison = compare(plan.collectives, plan.mesh, compiled.as_text())
        assert comparison.equal, f"\n{comparison}"


@pytest.mark.parametrize("name", [*COMMON, *NARROW, *FLOATS])
def test_sizes(name):
    x = jax.ShapeDtypeStruct((16, 8), jnp.dtype(name))
    rows = [pt.ManualPartition({"x": 0}, "a")]
    plan = pt.plan(lambda x: x.T.reshape(-1), x, mesh="a=4", hardware="cpu", tactics=rows)
    assert plan.estimate.argument_memory == 16 * 8 * BITS[name] // 8 // 4
    assert [c.bytes for c in plan.collectives] == [16 * 8 * BITS[name] // 8]


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((16, 8), "float32", "uint8"),
        ((16, 8, 4), "uint8", "float32"),
        ((16, 8), "float32", "int32"),
        ((16, 8, 2), "bfloat16", "uint32"),
        ((16, 8), "uint8", "uint4"),
    ],
)
def test_bits_read_as_another_type_stay_where_they_are(shape, before, after):
    def read(x):
        return lax.bitcast_convert_type(x, after)

    x = (jnp.arange(np.prod(shape)).reshape(shape) % 17).astype(before)
    tactics = [pt.ManualPartition({"x": dim}, axis) for dim, axis in ((0, "a"), (1, "b"))]
    plan = pt.plan(read, x, mesh="a=2,b=4", hardware="cpu", tactics=tactics)
    assert not plan.collectives
    assert plan.out_shardings == jax.sharding.PartitionSpec("a", "b")
    ours, theirs = plan.jit()(x), jax.jit(read)(x)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_parts_narrower_than_a_byte_are_not_summed_over_devices():
    def read(x, rows):
        return x[rows]

    x, _, rows = arguments("int4")
    tactic = pt.ManualPartition({"x": 0}, "a")
    plan = pt.plan(read, x, rows, mesh="a=4", hardware="cpu", tactics=[tactic])
    assert [c.kind for c in plan.collectives] == ["all_gather"]
    (use,) = plan.history[0].replicated_uses
    assert (use.operation, use.value, use.dim, use.bytes) == ("gather", "x", 0, 64)
    assert use.reason == "parts of i4 have no sum"
