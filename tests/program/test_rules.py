"""Sharding rules of operations: what of Shardy's holds for a device, and our own."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from partita.stablehlo.versions import JAX


def op_of(program, kind):
    """The only operation of a kind."""
    (op,) = [op for op in program.operations if op.short == kind]
    return op


def gather_rows(table, rows):
    return table.at[rows].get(mode="promise_in_bounds")


def add_rows(table, rows, update):
    return table.at[rows].add(update, mode="promise_in_bounds")


def set_rows(table, rows, update):
    return table.at[rows].set(update, mode="promise_in_bounds")


def window(x, start):
    return lax.dynamic_slice(x, (start, jnp.int32(0)), (2, 8))


def windows(x, starts):
    return jax.vmap(lambda start: window(x, start))(starts)


def columns(x, update):
    return lax.dynamic_update_slice(x, update, (0, 0))


def overlapping(x, updates, starts):
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    return lax.scatter_add(x, starts, updates, numbers)


INNER = "it is an inner factor of a dimension made of 4 x 3"

ONE_INDEX = "requires replication of" if JAX < (0, 11) else "moves elements along"
"""Why a dimension of one index is not sharded, in Shardy's rule for dynamic updates."""

RULES = [
    # id, function, types, operation, rule, reasons of blocked factors by size
    ("matmul", jnp.matmul, ["f32[4,8]", "f32[8,6]"], "dot_general", "[i k], [k j] -> [i j]", {}),
    (
        "batched",
        jnp.matmul,
        ["f32[2,4,8]", "f32[2,8,6]"],
        "dot_general",
        "[i j l], [i l k] -> [i j k]",
        {},
    ),
    ("add", jnp.add, ["f32[4,8]", "f32[4,8]"], "add", "[i j], [i j] -> [i j]", {}),
    (
        "select",
        lax.select,
        ["i1[4,8]", "f32[4,8]", "f32[4,8]"],
        "select",
        "[i j], [i j], [i j] -> [i j]",
        {},
    ),
    ("transpose", jnp.transpose, ["f32[4,8]"], "transpose", "[j i] -> [i j]", {}),
    (
        "broadcast",
        lambda x: jnp.broadcast_to(x, (4, 8)),
        ["f32[8]"],
        "broadcast_in_dim",
        "[j] -> [i j]",
        {},
    ),
    (
        "split",
        lambda x: x.reshape(4, 3, 8),
        ["f32[12,8]"],
        "reshape",
        "[ij k] -> [i j k]",
        {3: INNER},
    ),
    (
        "merge",
        lambda x: x.reshape(12, 8),
        ["f32[4,3,8]"],
        "reshape",
        "[i j k] -> [ij k]",
        {3: INNER},
    ),
    ("squeeze", lambda x: x.reshape(4, 8), ["f32[4,1,8]"], "reshape", "[i j k] -> [i k]", {}),
    ("sum", lambda x: x.sum(0), ["f32[4,8]"], "reduce", "[i j], [] -> [j]", {}),
    (
        "argmax",
        lambda x: x.argmax(1),
        ["f32[4,8]"],
        "reduce",
        "[i j], [i j], [], [] -> [i], [i]",
        {8: "unreduced results of reduce cannot be combined"},
    ),
    (
        "lookup",
        gather_rows,
        ["f32[16,8]", "i32[4]"],
        "gather",
        "[k j], [i l] -> [i j]",
        {1: "gather requires replication of this dimension"},
    ),
    (
        "scatter-add",
        add_rows,
        ["f32[16,8]", "i32[4]", "f32[4,8]"],
        "scatter",
        "[k j], [i l], [i j] -> [k j]",
        {1: "scatter requires replication of this dimension"},
    ),
    (
        "scatter-set",
        set_rows,
        ["f32[16,8]", "i32[4]", "f32[4,8]"],
        "scatter",
        "[k j], [i l], [i j] -> [k j]",
        {
            4: "scatter requires replication of this dimension",
            1: "scatter requires replication of this dimension",
        },
    ),
    (
        "windowed lookup",
        windows,
        ["f32[16,8]", "i32[4]"],
        "gather",
        "[j k], [i l] -> [i j k]",
        {
            16: "gather reads or writes windows along this dimension",
            2: "gather requires replication of this dimension",
        },
    ),
    (
        "windowed scatter-add",
        lambda x, update: x.at[1:3].add(update),
        ["f32[16,8]", "f32[2,8]"],
        "scatter",
        "[i k], [l], [j k] -> [i k]",
        {
            2: "scatter requires replication of this dimension",
            1: "scatter requires replication of this dimension",
        },
    ),
    (
        "scatter of windows that may overlap",
        overlapping,
        ["f32[16,8]", "f32[4,2,8]", "i32[4,1]"],
        "scatter",
        "[j l], [i m], [i k l] -> [j l]",
        {
            16: "scatter reads or writes windows along this dimension",
            2: "scatter requires replication of this dimension",
            1: "scatter requires replication of this dimension",
        },
    ),
    (
        "slice",
        lambda x: x[1:3],
        ["f32[4,8]"],
        "slice",
        "[ik j] -> [i j]",
        {2: "it is an inner factor of a dimension made of 2 x 2"},
    ),
    (
        "slice of which nothing divides",
        lambda x: x[1:],
        ["f32[4,8]"],
        "slice",
        "[j i] -> [k i]",
        dict.fromkeys((3, 4), "slice moves elements along this dimension"),
    ),
    ("slice of one index", lambda x: x[1:2], ["f32[4,8]"], "slice", "[j i] -> [1 i]", {}),
    (
        "dynamic-slice",
        window,
        ["f32[16,8]", "i32[]"],
        "dynamic_slice",
        "[i j], [], [] -> [i j]",
        {16: "dynamic_slice does not pass shards along this dimension"},
    ),
    (
        "dynamic-update-slice",
        columns,
        ["f32[16,8]", "f32[16,2]"],
        "dynamic_update_slice",
        "[i j], [i k], [], [] -> [i j]",
        {2: "dynamic_update_slice reads or writes windows along this dimension"},
    ),
    (
        "dynamic slice of one index",
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 1, axis=0),
        ["f32[16,8]", "i32[]"],
        "dynamic_slice",
        "[i j], [], [] -> [1 j]",
        {},
    ),
    (
        "dynamic update of one index",
        lambda x, row, i: lax.dynamic_update_slice_in_dim(x, row, i, axis=0),
        ["f32[16,8]", "f32[1,8]", "i32[]"],
        "dynamic_update_slice",
        "[i k], [j k], [], [] -> [i k]",
        {1: f"dynamic_update_slice {ONE_INDEX} this dimension"},
    ),
    (
        "reshape that cuts otherwise",
        lambda x: x.reshape(3, 8),
        ["f32[8,3]"],
        "reshape",
        "[i l] -> [j k]",
        dict.fromkeys((8, 3), "reshape cuts this dimension otherwise"),
    ),
    (
        "reshape that cuts a part otherwise",
        lambda x: x.reshape(2, 3, 4),
        ["f32[2,4,3]"],
        "reshape",
        "[i j m] -> [i k l]",
        dict.fromkeys((4, 3), "reshape cuts this dimension otherwise"),
    ),
    (
        "pad",
        lambda x: jnp.pad(x, ((0, 0), (1, 1))),
        ["f32[4,8]"],
        "pad",
        "[i jk], [] -> [i jl]",
        {
            4: "it is an inner factor of a dimension made of 2 x 4",
            5: "it is an inner factor of a dimension made of 2 x 5",
        },
    ),
    (
        "pad that keeps the size",
        lambda x: lax.pad(x, jnp.float32(0), ((0, 0, 0), (-1, 1, 0))),
        ["f32[4,8]"],
        "pad",
        "[i j], [] -> [i j]",
        {},
    ),
    (
        "pad between elements",
        lambda x: lax.pad(x, jnp.float32(0), ((0, 0, 0), (1, 0, 1))),
        ["f32[4,8]"],
        "pad",
        "[i j], [] -> [i jk]",
        {2: "it is an inner factor of a dimension made of 8 x 2"},
    ),
    (
        "concatenate",
        lambda x, y: jnp.concatenate([x, y], 1),
        ["f32[4,8]", "f32[4,2]"],
        "concatenate",
        "[i jk], [i j] -> [i jl]",
        {
            4: "it is an inner factor of a dimension made of 2 x 4",
            5: "it is an inner factor of a dimension made of 2 x 5",
        },
    ),
    (
        "reverse",
        lambda x: x[::-1],
        ["f32[4,8]"],
        "reverse",
        "[i j] -> [i j]",
        {},
    ),
    ("roll", lambda x: jnp.roll(x, 1, 0), ["f32[4,8]"], "roll", "[i j] -> [i j]", {}),
    ("iota", lambda: lax.iota(jnp.int32, 8), [], "iota", " -> [i]", {}),
    (
        "barrier",
        lambda x: lax.optimization_barrier(x),
        ["f32[2,3]"],
        "barrier",
        "[i j] -> [i j]",
        {},
    ),
    (
        "cumsum",
        lambda x: jnp.cumsum(x, 1),
        ["f32[4,8]"],
        "reduce_window",
        "[i j], [] -> [i k]",
        {8: "reduce_window reads windows along this dimension"},
    ),
    (
        "sort",
        jnp.sort,
        ["f32[4,8]"],
        "sort",
        "[i j] -> [i j]",
        {8: "sort requires replication of this dimension"},
    ),
    (
        "top_k",
        lambda x: lax.top_k(x, 2)[0],
        ["f32[4,8]"],
        "top_k",
        "[i j] -> [i 1], [i 1]",
        {8: "top_k requires replication of this dimension"},
    ),
    (
        "fft",
        jnp.fft.fft,
        ["c64[4,8]"],
        "fft",
        "[i j] -> [i j]",
        {8: "fft requires replication of this dimension"},
    ),
    (
        "convolution",
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        ["f32[2,3,8,8]", "f32[5,3,3,3]"],
        "convolution",
        "[i j l n], [k j m o] -> [i k l n]",
        {3: "convolution reads windows along this dimension"},
    ),
    (
        "strided convolution",
        lambda x, w: lax.conv(x, w, (2, 2), "SAME"),
        ["f32[2,3,8,8]", "f32[5,3,3,3]"],
        "convolution",
        "[i j lm op], [k j n q] -> [i k l o]",
        {
            2: "it is an inner factor of a dimension made of 4 x 2",
            3: "convolution reads windows along this dimension",
        },
    ),
    (
        "gradient of a convolution's kernel",
        lambda x, w: jax.grad(lambda w: lax.conv(x, w, (1, 1), "SAME").sum())(w),
        ["f32[2,3,8,8]", "f32[5,3,3,3]"],
        "convolution",
        "[j i l n], [j k l n] -> [k i m o]",
        {3: "convolution reads windows along this dimension"},
    ),
    (
        "convolution that shortens",
        lambda x, w: lax.conv(x, w, (1, 1), "VALID"),
        ["f32[2,3,8,8]", "f32[5,3,3,3]"],
        "convolution",
        "[i j l o], [k j n q] -> [i k m p]",
        dict.fromkeys((8, 6, 3), "convolution reads windows along this dimension"),
    ),
    (
        "pooling",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
        ["f32[4,8]"],
        "reduce_window",
        "[i jk], [] -> [i j]",
        {2: "it is an inner factor of a dimension made of 4 x 2"},
    ),
    (
        "gradient of pooling",
        lambda x: jax.grad(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID").sum()
        )(x),
        ["f32[4,8]"],
        "select_and_scatter",
        "[i jk], [i j], [] -> [i jk]",
        {2: "it is an inner factor of a dimension made of 4 x 2"},
    ),
    (
        "gradient of overlapping pooling",
        lambda x: jax.grad(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 1), "SAME").sum()
        )(x),
        ["f32[4,8]"],
        "select_and_scatter",
        "[i j], [i k], [] -> [i j]",
        dict.fromkeys((10, 8), "select_and_scatter reads windows along this dimension"),
    ),
    (
        "batched custom call",
        lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        ["f32[8,4,4]"],
        "custom_call",
        "[i j k] -> [i l m], [i]",
        {4: "lapack_spotrf_ffi requires replication of this dimension"},
    ),
]


@pytest.mark.parametrize(
    ("fn", "types", "kind", "rule", "blocked"), [r[1:] for r in RULES], ids=[r[0] for r in RULES]
)
def test_rules(program, fn, types, kind, rule, blocked):
    op = op_of(program(fn, *types), kind)
    assert op.rule.known
    assert str(op.rule) == rule
    assert {f.size: f.reason for f in op.rule.factors if f.kind == "blocked"} == blocked
    assert not any(f.reason for f in op.rule.factors if f.kind != "blocked")


@pytest.mark.parametrize(
    ("fn", "types", "kind", "reduced", "combine"),
    [
        (jnp.matmul, ["f32[4,8]", "f32[8,6]"], "dot_general", [8], "add"),
        (lambda x: x.sum((0, 2)), ["f32[2,3,4]"], "reduce", [2, 4], "add"),
        (lambda x: x.max(0), ["f32[4,8]"], "reduce", [4], "max"),
        (lambda x: x.min(0), ["f32[4,8]"], "reduce", [4], "min"),
        (lambda x: jnp.prod(x, 0), ["f32[4,8]"], "reduce", [4], "mul"),
        (lambda x: x.all(0), ["i1[4,8]"], "reduce", [4], "and"),
        (lambda x: x.any(0), ["i1[4,8]"], "reduce", [4], "or"),
        (lambda x: x.argmax(0), ["f32[4,8]"], "reduce", [], ""),
        (gather_rows, ["f32[16,8]", "i32[4]"], "gather", [16], "add"),
        (add_rows, ["f32[16,8]", "i32[4]", "f32[4,8]"], "scatter", [4], "add"),
        (set_rows, ["f32[16,8]", "i32[4]", "f32[4,8]"], "scatter", [], ""),
    ],
)
def test_reductions_and_how_their_parts_combine(program, fn, types, kind, reduced, combine):
    op = op_of(program(fn, *types), kind)
    assert [f.size for f in op.rule.factors if f.kind == "reduction"] == reduced
    assert op.combine == combine


@pytest.mark.parametrize(
    ("fn", "types", "kind", "zero"),
    [
        (lambda x: x.sum(0), ["f32[4]"], "reduce", True),
        (lambda x: lax.reduce(x, jnp.float32(1), lax.add, (0,)), ["f32[4]"], "reduce", False),
        (lambda x, init: lax.reduce(x, init, lax.add, (0,)), ["f32[4]", "f32[]"], "reduce", False),
        (partial(add_rows, jnp.zeros((9, 2))), ["i32[4]", "f32[4,2]"], "scatter", True),
        (partial(add_rows, jnp.ones((9, 2))), ["i32[4]", "f32[4,2]"], "scatter", False),
        (add_rows, ["f32[9,2]", "i32[4]", "f32[4,2]"], "scatter", False),
    ],
)
def test_what_starts_from_zeros(program, fn, types, kind, zero):
    assert op_of(program(fn, *types), kind).zero_init is zero


def test_operations_without_a_rule_are_unknown_and_carry_nothing(program):
    p = program(lambda key: lax.rng_bit_generator(key, (8,))[1], "u32[4]")
    op = op_of(p, "rng_bit_generator")
    assert not op.rule.known
    assert op.rule.factors == ()
    assert len(op.rule.operands) == len(op.operands)
    assert len(op.rule.results) == len(op.results)


@pytest.mark.parametrize("name", ["x", "y", "result"])
def test_the_gradient_of_pooling_is_local_along_dimensions_without_windows(bench, name):
    def fn(x, y):
        pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 3), "VALID")  # noqa: E731
        return jax.vjp(pool, x)[1](y)[0]

    b = bench(fn, "f32[4,9]", "f32[4,3]")
    assert set(b.layouts(b.propagation(name, 0, "x").tiling)) == {"x", "y", "result"}
