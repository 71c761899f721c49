"""Import: what a `Program` keeps of a JAX function or a StableHLO text, and what is refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from partita.errors import TraceError, UnsupportedError
from partita.program import TensorType
from partita.stablehlo import versions
from partita.stablehlo.importer import import_stablehlo
from partita.text import relative

HERE = relative(__file__)


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
    line = f"{HERE}:{layer.__code__.co_firstlineno + 1}"
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
    assert [op.source for op in p.operations] == [f"{HERE}:{start + n}" for n in (1, 2)]
    assert p.describe(p.results[0]) == f"cosine at {HERE}:{start + 2}"
    assert p.describe(p.arguments[0]) == "x"


def test_sources_survive_inlining(program):
    def inner(x):
        return jnp.sin(x)

    p = program(lambda x: jax.jit(inner)(x), "f32[4]")
    assert p.operations[0].source == f"{HERE}:{inner.__code__.co_firstlineno + 1}"


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
    operations = program(fn, "f32[4,8]").operations
    assert all(op.rule.known for op in operations)
    if fn is not lax.lgamma or versions.JAX < (0, 12):  # which writes it out
        assert [str(op.rule) for op in operations] == ["[i j] -> [i j]"]


def test_complex_constants(program):
    p = program(lambda x: x * (1 + 2j), "c64[4]")
    assert p.values[p.results[0]].type == TensorType((4,), "complex<f32>")


# ---------------------------------------------------------------------------------- refused


def calls_back(x):
    return jax.pure_callback(lambda x: x, x, x)


def calls_back_in_order(x):
    return jax.experimental.io_callback(lambda x: x, x, x, ordered=True)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (calls_back, rf"pure_callback at {HERE}:\d+ calls back to the host .* outside of the"),
        (calls_back_in_order, rf"io_callback at {HERE}:\d+ calls back to the host"),
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
    ],
    ids=["garbage", "empty", "no main", "dynamic", "unranked", "token"],
)
def test_texts_that_cannot_be_partitioned(text, message):
    with pytest.raises(UnsupportedError, match=message):
        import_stablehlo(text)
