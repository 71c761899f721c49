"""Import: what a `Program` keeps of a JAX function or a StableHLO text, and what is refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from partita.errors import TraceError, UnsupportedError
from partita.program import TensorType, import_stablehlo


def kinds(program):
    return [op.short for op in program.operations]


def op_of(program, kind):
    """The only operation of a kind."""
    (op,) = [op for op in program.operations if op.short == kind]
    return op


def hlo(signature, body):
    return f"module @test {{ func.func @main{signature} {{ {body} }} }}"


# ------------------------------------------------------------------------------- the program


def test_program_prints_as_it_was_written(program):
    def layer(x, w):
        return jnp.tanh(x @ w)

    text = str(program(layer, "f32[4,8]", "f32[8,6]"))
    line = f"{__file__}:{layer.__code__.co_firstlineno + 1}"
    assert text == (
        "program layer\n"
        "  %0 = x : f32[4,8]\n"
        "  %1 = w : f32[8,6]\n"
        f"  %2 = dot_general(%0, %1) : f32[4,6]  [i k], [k j] -> [i j]  {line}\n"
        f"  %3 = tanh(%2) : f32[4,6]  [i j] -> [i j]  {line}\n"
        "  result = %3"
    )


def test_values_know_their_producers_and_uses(program):
    p = program(lambda x, y: x - x * y, "f32[4]", "f32[4]")
    assert [(v.producer, v.position) for v in p.values] == [(None, 0), (None, 1), (0, 0), (1, 0)]
    assert p.uses() == [[(0, 0), (1, 0)], [(0, 1)], [(1, 1)], []]


def test_calls_are_inlined(program):
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    @jax.jit
    def outer(x):
        return inner(x) + inner(x * x)

    p = program(lambda x: outer(outer(x)), "f32[4]")
    assert kinds(p) == ["sine", "multiply", "sine", "add"] * 2
    assert "call @" not in p.module


def test_a_function_that_calls_one_twice_does_not_mix_the_copies(program):
    inner = jax.jit(lambda x: x.T)
    p = program(lambda x, y: (inner(x), inner(y)), "f32[4,2]", "f32[4,2]")
    assert [op.operands for op in p.operations] == [(0,), (1,)]


@pytest.mark.parametrize(
    "shared",
    [
        "%c = stablehlo.constant dense<2.0> : tensor<4xf32>",
        "%c = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>",
        "%c = stablehlo.iota dim = 0 : tensor<4xf32>",
        "%s = stablehlo.constant dense<2.0> : tensor<f32>"
        "%c = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4xf32>",
    ],
    ids=["splat", "dense", "iota", "broadcast"],
)
def test_every_use_of_a_constant_has_its_own_copy(shared):
    p = import_stablehlo(
        hlo(
            "(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)",
            f"""{shared}
            %0 = stablehlo.multiply %x, %c : tensor<4xf32>
            %1 = stablehlo.multiply %y, %c : tensor<4xf32>
            return %0, %1 : tensor<4xf32>, tensor<4xf32>""",
        )
    )
    first, second = (op.operands[1] for op in p.operations if op.short == "multiply")
    assert first != second
    assert p.values[first].type == p.values[second].type == TensorType((4,), "f32")


def test_every_use_of_an_iota_has_its_own_copy_inside_a_mask_too(program):
    def mask(x):
        rows = jnp.arange(8)
        return jnp.where(rows[:, None] >= rows[None, :], x, 0.0)

    assert kinds(program(mask, "f32[8,8]")).count("iota") == 2


def test_dead_code_is_dropped():
    p = import_stablehlo(
        hlo(
            "(%x: tensor<4xf32>) -> tensor<4xf32>",
            """%0 = stablehlo.sine %x : tensor<4xf32>
            %1 = stablehlo.cosine %0 : tensor<4xf32>
            %2 = stablehlo.tanh %x : tensor<4xf32>
            return %2 : tensor<4xf32>""",
        )
    )
    assert kinds(p) == ["tanh"]


def test_unused_arguments_are_kept(program):
    p = program(lambda x, unused, y: x + y, "f32[4]", "f32[9]", "f32[4]")
    assert p.argument_names == ("x", "unused", "y")
    assert p.operations[0].operands == (0, 2)


def test_module_is_the_same_program_operation_for_operation(program):
    p = program(lambda x: jnp.where(x > 0, jax.nn.softmax(x), 0.5), "f32[4,8]")
    again = import_stablehlo(p.module, p.name)
    assert kinds(again) == kinds(p)
    assert [op.rule for op in again.operations] == [op.rule for op in p.operations]


# ------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("fn", "types", "arguments", "results"),
    [
        (lambda x: -x, ["f32[2]"], ["x"], ["result"]),
        (lambda x, y: (y, x), ["f32[2]", "f32[3]"], ["x", "y"], ["result[0]", "result[1]"]),
        (
            lambda state: {"w": state["w"], "layers": [-v for v in state["layers"]]},
            [{"w": "f32[2]", "layers": ["f32[3]", "f32[4]"]}],
            ["state['layers'][0]", "state['layers'][1]", "state['w']"],
            ["result['layers'][0]", "result['layers'][1]", "result['w']"],
        ),
        (lambda *xs: xs[0], ["f32[2]", "f32[2]"], ["xs[0]", "xs[1]"], ["result"]),
    ],
    ids=["one", "tuple", "nested", "starred"],
)
def test_arguments_and_results_are_named_as_jax_prints_them(program, fn, types, arguments, results):
    p = program(fn, *types)
    assert list(p.argument_names) == arguments
    assert list(p.result_names) == results


def test_unnamed_arguments_and_results_are_numbered():
    p = import_stablehlo(
        hlo(
            "(%x: tensor<4xf32>, %y: tensor<f32>) -> (tensor<f32>, tensor<4xf32>)",
            "return %y, %x : tensor<f32>, tensor<4xf32>",
        )
    )
    assert p.argument_names == ("arg0", "arg1")
    assert p.result_names == ("result[0]", "result[1]")
    assert p.results == (1, 0)


@pytest.mark.parametrize("function", ["main", "only"])
def test_a_text_is_called_like_its_module(function):
    text = f"module @test {{ func.func @{function}() {{ return }} }}"
    assert import_stablehlo(text).name == "test"
    assert import_stablehlo(text, "mine").name == "mine"


def test_a_module_without_a_name_is_read():
    assert import_stablehlo("module { func.func @main() { return } }").name


def scaled(x):
    return x * 2.0


@pytest.mark.parametrize("fn", [scaled, jax.jit(scaled), partial(scaled), partial(jax.jit(scaled))])
def test_a_program_is_called_like_its_function(program, fn):
    assert program(fn, "f32[4]").name == "scaled"


def test_sources_are_the_users_lines(program):
    def two_lines(x):
        y = jnp.sin(x)
        return jnp.cos(y)

    p = program(two_lines, "f32[4]")
    start = two_lines.__code__.co_firstlineno
    assert [op.source for op in p.operations] == [f"{__file__}:{start + n}" for n in (1, 2)]
    assert p.describe(p.results[0]) == f"cosine at {__file__}:{start + 2}"
    assert p.describe(p.arguments[0]) == "x"


def test_sources_survive_inlining(program):
    def inner(x):
        return jnp.sin(x)

    p = program(lambda x: jax.jit(inner)(x), "f32[4]")
    assert p.operations[0].source == f"{__file__}:{inner.__code__.co_firstlineno + 1}"


def test_scopes_are_kept(program):
    def scoped(x):
        with jax.named_scope("attention"):
            return jnp.sin(x)

    assert "attention" in program(scoped, "f32[4]").operations[0].scope


# ---------------------------------------------------------------------------------- aliases


def update(state, batch):
    return {"w": state["w"] + 1.0, "count": state["count"] + 1}, batch.sum()


STATE = {"w": "f32[4]", "count": "i32[]"}


def swap(a, b):
    return b * 2.0, a * 3.0


@pytest.mark.parametrize(
    ("fn", "types", "donate", "aliases"),
    [
        (update, [STATE, "f32[2,3]"], (), {}),
        (update, [STATE, "f32[2,3]"], 0, {0: 0, 1: 1}),
        (jax.jit(update, donate_argnums=0), [STATE, "f32[2,3]"], (), {0: 0, 1: 1}),
        (swap, ["f32[2]", "f32[3]"], 1, {1: 0}),
        (swap, ["f32[2]", "f32[3]"], (0, 1), {0: 1, 1: 0}),
    ],
    ids=["none", "asked", "own", "second", "both"],
)
def test_donated_arguments_are_taken_over_by_results(program, fn, types, donate, aliases):
    assert program(fn, *types, donate=donate).aliases == aliases


# ------------------------------------------------------------------------------------ rules


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


INNER = "it is an inner factor of a dimension made of 4 x 3"

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
        {8: "partial results of reduce cannot be combined"},
    ),
    (
        "lookup",
        gather_rows,
        ["f32[16,8]", "i32[4]"],
        "gather",
        "[k j], [i l] -> [i j]",
        {1: "gather needs this dimension whole"},
    ),
    (
        "scatter-add",
        add_rows,
        ["f32[16,8]", "i32[4]", "f32[4,8]"],
        "scatter",
        "[k j], [i l], [i j] -> [k j]",
        {1: "scatter needs this dimension whole"},
    ),
    (
        "scatter-set",
        set_rows,
        ["f32[16,8]", "i32[4]", "f32[4,8]"],
        "scatter",
        "[k j], [i l], [i j] -> [k j]",
        {
            4: "scatter needs this dimension whole",
            1: "scatter needs this dimension whole",
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
            2: "gather needs this dimension whole",
        },
    ),
    (
        "windowed scatter-add",
        lambda x, update: x.at[1:3].add(update),
        ["f32[16,8]", "f32[2,8]"],
        "scatter",
        "[i k], [l], [j k] -> [i k]",
        {
            16: "scatter reads or writes windows along this dimension",
            2: "scatter needs this dimension whole",
            1: "scatter needs this dimension whole",
        },
    ),
    (
        "slice",
        lambda x: x[1:3],
        ["f32[4,8]"],
        "slice",
        "[i j] -> [i j]",
        {4: "slice moves elements along this dimension"},
    ),
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
        dict.fromkeys((8, 2), "dynamic_update_slice reads or writes windows along this dimension"),
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
        {1: "dynamic_update_slice needs this dimension whole"},
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
        "[i j], [] -> [i j]",
        {8: "pad moves elements along this dimension"},
    ),
    (
        "pad that keeps the size",
        lambda x: lax.pad(x, jnp.float32(0), ((0, 0, 0), (-1, 1, 0))),
        ["f32[4,8]"],
        "pad",
        "[i j], [] -> [i j]",
        {8: "pad moves elements along this dimension"},
    ),
    (
        "concatenate",
        lambda x, y: jnp.concatenate([x, y], 1),
        ["f32[4,8]", "f32[4,2]"],
        "concatenate",
        "[i j], [i j] -> [i j]",
        {10: "concatenate needs this dimension whole"},
    ),
    (
        "reverse",
        lambda x: x[::-1],
        ["f32[4,8]"],
        "reverse",
        "[i j] -> [i j]",
        {4: "reverse moves elements along this dimension"},
    ),
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
        {8: "sort needs this dimension whole"},
    ),
    (
        "top_k",
        lambda x: lax.top_k(x, 2)[0],
        ["f32[4,8]"],
        "top_k",
        "[i j] -> [i 1], [i 1]",
        {8: "top_k needs this dimension whole"},
    ),
    (
        "fft",
        jnp.fft.fft,
        ["c64[4,8]"],
        "fft",
        "[i j] -> [i j]",
        {8: "fft needs this dimension whole"},
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
        {4: "custom_call is local along batch dimensions only"},
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


# -------------------------------------------------------------------------- loops, branches


def scanned(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum(0)), x, ws)


@pytest.mark.parametrize(
    ("fn", "types", "trips"),
    [
        (scanned, ["f32[4,8,8]", "f32[2,8]"], [4]),
        (
            lambda ws, x: lax.scan(lambda h, w: (h @ w, None), x, ws, unroll=2),
            ["f32[4,8,8]", "f32[2,8]"],
            [2],
        ),
        (lambda x: lax.fori_loop(2, 7, lambda i, c: c * 2, x), ["f32[8]"], [5]),
        (lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 2, x), ["f32[8]", "i32[]"], [None]),
        (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x), ["f32[8]"], [None]),
        (
            lambda ws, x: lax.scan(
                lambda h, w: (lax.fori_loop(0, 3, lambda i, c: c @ w, h), None), x, ws
            )[0],
            ["f32[4,8,8]", "f32[2,8]"],
            [4, 3],
        ),
    ],
    ids=["scan", "unrolled scan", "fori", "unknown bound", "while", "nested"],
)
def test_trip_counts_are_read_where_they_are_constant(program, fn, types, trips):
    assert [loop.trips for loop in program(fn, *types).loops] == trips


def test_a_carried_value_is_one_operation_with_one_layout(program):
    p = program(scanned, "f32[4,8,8]", "f32[2,8]")
    (loop,) = p.loops
    hidden = next(
        p.operations[c]
        for c in loop.carries
        if c is not None and p.values[p.operations[c].results[0]].type.shape == (2, 8)
    )
    assert str(hidden.rule) == "[i j], [i j] -> [i j], [i j], [i j]"
    assert hidden.operands[0] == p.arguments[1]


def test_what_a_loop_does_not_change_is_not_carried(program):
    p = program(scanned, "f32[4,8,8]", "f32[2,8]")
    (loop,) = p.loops
    stack = p.arguments[0]
    assert not any(stack in p.operations[c].operands for c in loop.carries if c is not None)
    assert any(stack in p.operations[op].operands for op in loop.body.operations())


def test_operations_know_how_often_they_run(program):
    p = program(scanned, "f32[4,8,8]", "f32[2,8]")
    assert op_of(p, "dot_general").times == 4
    assert {op.times for op in p.operations if op.region == 0} == {1}


def test_a_barrier_is_one_operation_for_each_of_its_operands(program):
    p = program(lambda x, y: lax.optimization_barrier((x, y)), "f32[4]", "f32[2,3]")
    assert [str(op.rule) for op in p.operations] == ["[i] -> [i]", "[i j] -> [i j]"]
    (barrier,) = p.body.items
    assert barrier.parts == (0, 1)


def test_branches_are_joined(program):
    p = program(lambda c, x: lax.cond(c, jnp.sin, jnp.cos, x), "i1[]", "f32[8]")
    join = op_of(p, "join")
    kinds = {p.operations[p.values[v].producer].short for v in join.operands}
    assert kinds == {"sine", "cosine"}
    assert str(join.rule) == "[i], [i] -> [i]"


@pytest.mark.parametrize(
    "fn",
    [lax.erf, lax.erf_inv, lax.square, lax.sinh, lax.lgamma, jnp.tanh],
    ids=lambda f: f.__name__,
)
def test_elementwise_functions_have_a_rule(program, fn):
    (op,) = program(fn, "f32[4,8]").operations
    assert op.rule.known
    assert str(op.rule) == "[i j] -> [i j]"


def test_complex_constants(program):
    p = program(lambda x: x * (1 + 2j), "c64[4]")
    assert p.values[p.results[0]].type == TensorType((4,), "complex<f32>")


# ---------------------------------------------------------------------------------- refused


def prints(x):
    jax.debug.print("{}", x)
    return x


def calls_back(x):
    return jax.pure_callback(lambda x: x, x, x)


def calls_back_in_order(x):
    return jax.experimental.io_callback(lambda x: x, x, x, ordered=True)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (prints, "prints has side effects .*take debug prints and callbacks out"),
        (calls_back, rf"call back to the host at {__file__}:\d+ .*take debug prints"),
        (calls_back_in_order, "side effects .*Ordered"),
    ],
)
def test_effects_are_refused(program, fn, message):
    with pytest.raises(UnsupportedError, match=message):
        program(fn, "f32[4]")


def test_a_function_that_does_not_trace_gives_jaxs_own_message(program):
    def wrong(x, y):
        return x @ y

    with pytest.raises(TraceError) as error:
        program(wrong, "f32[4,3]", "f32[4,3]")
    with pytest.raises(TypeError) as own:
        wrong(jnp.ones((4, 3)), jnp.ones((4, 3)))
    assert str(error.value) == (
        f"JAX cannot trace wrong on the arguments given: TypeError: {own.value}"
    )
    assert isinstance(error.value.__cause__, TypeError)


def test_a_wrong_number_of_arguments_is_a_trace_error(program):
    with pytest.raises(TraceError, match=r"cannot trace scaled .*missing 1 required"):
        program(scaled)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("this is not MLIR", "not a readable StableHLO module: .*"),
        ("", "no function `main`"),
        (
            "module { func.func @f() { return } func.func @g() { return } }",
            "the module has no function `main`",
        ),
        (
            hlo("(%x: tensor<?x4xf32>) -> tensor<?x4xf32>", "return %x : tensor<?x4xf32>"),
            r"tensor<\?x4xf32> has a dynamic shape; export the program with fixed shapes",
        ),
        (
            hlo("(%x: tensor<*xf32>) -> tensor<*xf32>", "return %x : tensor<*xf32>"),
            "tensor<.*> (has a dynamic shape|cannot be partitioned)",
        ),
        (
            hlo("(%t: !stablehlo.token) -> !stablehlo.token", "return %t : !stablehlo.token"),
            "contains a call back to the host .!stablehlo.token.; .*take debug prints",
        ),
        (
            'module @test { sdy.mesh @m = <["a"=2]> '
            "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { "
            '%0 = sdy.sharding_constraint %x <@m, [{"a"}]> : tensor<4xf32> '
            "return %0 : tensor<4xf32> } }",
            "contains a sharding constraint .*ManualPartition",
        ),
    ],
    ids=["garbage", "empty", "no main", "dynamic", "unranked", "token", "constraint"],
)
def test_texts_that_cannot_be_partitioned(text, message):
    with pytest.raises(UnsupportedError, match=message):
        import_stablehlo(text)
