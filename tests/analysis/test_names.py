"""Names and colors: which dimensions go together."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partita.analysis.names import analyse_names, components
from partita.stablehlo.importer import import_stablehlo


def colors(program):
    """The colors of arguments and results, as one word of letters for each ('-' for none)."""
    names = analyse_names(program)
    words = {}
    for name, value in (
        *zip(program.argument_names, program.arguments, strict=True),
        *zip(program.result_names, program.results, strict=True),
    ):
        words[name] = "".join("-" if c < 0 else "abcdefgh"[c] for c in names.dim_colors(value))
    return words


def chain(x, w, v):
    return (x @ w) @ v


def attention(x, wq, wk, wv):
    scores = (x @ wq) @ (x @ wk).T
    return scores @ (x @ wv)


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True)) * scale


def residual(x, w):
    return x + x @ w


@pytest.mark.parametrize(
    ("fn", "types", "expected"),
    [
        (
            chain,
            ["f32[4,8]", "f32[8,6]", "f32[6,2]"],
            {"x": "ab", "w": "bc", "v": "cd", "result": "ad"},
        ),
        (
            attention,
            ["f32[4,8]", "f32[8,6]", "f32[8,6]", "f32[8,10]"],
            {"x": "ab", "wq": "bc", "wk": "bc", "wv": "bd", "result": "ad"},
        ),
        (norm, ["f32[4,8]", "f32[8]"], {"x": "ab", "scale": "b", "result": "ab"}),
        (residual, ["f32[4,8]", "f32[8,8]"], {"x": "ab", "w": "bb", "result": "ab"}),
        (lambda x: x + x.T, ["f32[4,4]"], {"x": "aa", "result": "aa"}),
        (lambda x, y: (x, y), ["f32[4]", "f32[4]"], {"x": "a", "y": "b"}),
        (lambda x: x.reshape(4, 3, 8), ["f32[12,8]"], {"x": "ab", "result": "acb"}),
        (lambda x: x.reshape(4, 1, 8), ["f32[4,8]"], {"x": "ab", "result": "a-b"}),
        (lambda x: x.reshape(12, 8), ["f32[4,3,8]"], {"x": "abc", "result": "ac"}),
        (lambda x: x[1:3], ["f32[4,8]"], {"x": "ab", "result": "ab"}),
        (lambda x: jnp.sort(x), ["f32[4,8]"], {"x": "ab", "result": "ac"}),
        (
            lambda t, n: t.at[n].get(mode="promise_in_bounds"),
            ["f32[16,8]", "i32[4]"],
            {"t": "ab", "n": "c", "result": "cb"},
        ),
        (lambda x: x * 2.0, ["f32[4,1]"], {"x": "a-", "result": "a-"}),
        (lambda x: x * 2.0, ["f32[]"], {"x": "", "result": ""}),
    ],
    ids=[
        *("chain", "self attention", "norm", "square weight", "x + x.T", "unrelated"),
        *("split", "unit dimension", "merge", "slice", "sort", "lookup", "size one", "scalar"),
    ],
)
def test_colors(program, fn, types, expected):
    found = colors(program(fn, *types))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "shared",
    [
        "%c = stablehlo.constant dense<0.9> : tensor<4xf32>",
        "%c = stablehlo.iota dim = 0 : tensor<4xf32>",
    ],
    ids=["constant", "iota"],
)
def test_a_shared_constant_does_not_join_colors(shared):
    p = import_stablehlo(
        f"""module @test {{
        func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
            {shared}
            %0 = stablehlo.multiply %x, %c : tensor<4xf32>
            %1 = stablehlo.multiply %y, %c : tensor<4xf32>
            return %0, %1 : tensor<4xf32>, tensor<4xf32>
        }} }}"""
    )
    assert colors(p) == {"arg0": "a", "arg1": "b", "result[0]": "a", "result[1]": "b"}


@pytest.mark.parametrize(("donate", "result"), [((), "b"), (0, "a")], ids=["kept", "donated"])
def test_a_donated_buffer_joins_argument_and_result(program, donate, result):
    p = program(lambda old, new: new + 1.0, "f32[4]", "f32[4]", donate=donate)
    assert colors(p)["result"] == result


def test_reductions_and_their_operands_have_one_color(program):
    p = program(chain, "f32[4,8]", "f32[8,6]", "f32[6,2]")
    names = analyse_names(p)
    reduced = [
        (operation, factor)
        for operation in p.operations
        for factor, each in enumerate(operation.rule.factors)
        if each.kind == "reduction"
    ]
    (first, i), (second, j) = reduced
    x, w, v = p.arguments
    assert names.factor_colors(first.index)[i] == names.dim_colors(x)[1] == names.dim_colors(w)[0]
    assert names.factor_colors(second.index)[j] == names.dim_colors(w)[1] == names.dim_colors(v)[0]


def test_blocked_factors_have_no_color(program):
    p = program(lambda x: jnp.sort(x), "f32[4,8]")
    (op,) = [op for op in p.operations if op.short == "sort"]
    colors = analyse_names(p).factor_colors(op.index)
    blocked = [factor.kind == "blocked" for factor in op.rule.factors]
    assert any(blocked) and not all(blocked)
    assert [color == -1 for color in colors] == blocked


def test_every_edge_joins_nodes_of_one_color(gpt_program):
    names = analyse_names(gpt_program(1))
    assert len(names.edges) > 1000
    ends = names.color[names.edges]
    assert (ends >= 0).all()
    assert (ends[:, 0] == ends[:, 1]).all()
    assert len(np.unique(names.color[names.color >= 0])) == names.colors


@pytest.mark.parametrize(
    ("edges", "member", "labels"),
    [
        ([], [1, 1, 1], [0, 1, 2]),
        ([(2, 1)], [1, 1, 1], [0, 1, 1]),
        ([(0, 3), (3, 1)], [1, 1, 1, 1], [0, 0, 1, 0]),
        ([(1, 2)], [0, 1, 1], [-1, 0, 0]),
    ],
)
def test_components_are_numbered_by_their_first_node(edges, member, labels):
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    count, found = components(len(member), pairs, np.array(member, bool))
    assert found.tolist() == labels
    assert count == max(labels) + 1
