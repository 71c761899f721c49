"""Conflicts: where a color meets itself, and the roles that compete there."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from partita.analysis import analyse


def chain(x, w, v):
    return (x @ w) @ v


def residual(x, w):
    return x + x @ w


def two_residuals(x, w, v):
    x = x + x @ w
    return x + x @ v


def attention(x, wq, wk, wv):
    scores = (x @ wq) @ (x @ wk).T
    return scores @ (x @ wv)


def two_heads(x, w, v):
    return attention(attention(x, w, w, w), v, v, v)


@pytest.mark.parametrize(
    ("fn", "types", "roles"),
    [
        (chain, ["f32[4,8]", "f32[8,6]", "f32[6,2]"], []),
        (lambda x, y: x + y.T, ["f32[4,4]", "f32[4,4]"], []),
        (lambda x: x + x.T, ["f32[4,4]"], [1]),
        (residual, ["f32[4,8]", "f32[8,8]"], [2]),
        (two_residuals, ["f32[4,8]", "f32[8,8]", "f32[8,8]"], [2, 2]),
        (lambda x: x @ x.T, ["f32[4,8]"], [2]),
        (lambda x: x[:, None, None] + x[None, :, None] * x[None, None], ["f32[4]"], [3]),
        (attention, ["f32[4,8]", "f32[8,6]", "f32[8,6]", "f32[8,10]"], [2]),
        (two_heads, ["f32[4,8]", "f32[8,8]", "f32[8,8]"], [2, 2]),
    ],
    ids=[
        *("chain", "two matrices", "x + x.T", "square weight", "two square weights"),
        *("gram", "outer", "self attention", "two attentions"),
    ],
)
def test_how_many_roles_compete(program, fn, types, roles):
    conflicts = analyse(program(fn, *types)).conflicts
    assert [len(each) for each in conflicts.sets] == roles
    assert len(conflicts.color) == len(roles)
    assert sorted(role for each in conflicts.sets for role in each) == list(range(sum(roles)))


class Held:
    """Roles of the dimensions of a program's arguments and operations."""

    def __init__(self, program):
        self.program = program
        self.analysis = analyse(program)

    def argument(self, name):
        names = self.analysis.names
        value = self.program.arguments[self.program.argument_names.index(name)]
        start, end = names.value_base[value : value + 2]
        return self.analysis.conflicts.role[start:end].tolist()

    def operation(self, index):
        start, end = self.analysis.names.factor_base[index : index + 2]
        return self.analysis.conflicts.role[start:end].tolist()


def test_a_square_weight_holds_one_role_in_each_dimension(program):
    held = Held(program(residual, "f32[4,8]", "f32[8,8]"))
    first, second = held.argument("w")
    assert first != second and min(first, second) >= 0
    assert held.argument("x") == [-1, -1]
    batch, out, contracted = held.operation(0)
    assert (batch, contracted, out) == (-1, first, second)


def test_queries_and_keys_are_the_roles_of_self_attention(program):
    p = program(attention, "f32[4,8]", "f32[8,6]", "f32[8,6]", "f32[8,10]")
    held = Held(p)
    scores, mixed = [
        op.index
        for op in p.operations
        if op.short == "dot_general" and 4 in [f.size for f in op.rule.factors[1:]]
    ]
    query, key, contracted = held.operation(scores)
    assert contracted == -1
    assert {query, key} == {0, 1}
    # [query, value dimension] = sum over keys
    assert held.operation(mixed) == [query, -1, key]
    assert [held.argument(name) for name in p.argument_names] == [[-1, -1]] * 4


def test_the_color_of_a_conflict_is_the_one_held_twice(program):
    p = program(attention, "f32[4,8]", "f32[8,6]", "f32[8,6]", "f32[8,10]")
    analysis = analyse(p)
    assert analysis.conflicts.color == (analysis.names.dim_colors(p.arguments[0])[0],)


def test_elementwise_operations_between_carry_the_roles_on(program):
    def masked(x, w):
        scores = jnp.exp((x @ w) @ (x @ w).T)
        return scores / scores.sum(-1, keepdims=True) @ x

    p = program(masked, "f32[4,8]", "f32[8,6]")
    held = Held(p)
    (exp,) = [op.index for op in p.operations if op.short == "exponential"]
    (div,) = [op.index for op in p.operations if op.short == "divide"]
    assert held.operation(exp) == held.operation(div)
    assert len(analyse(p).conflicts.sets) == 1


@pytest.mark.parametrize("layers", [1, 3])
def test_gpt_has_one_conflict_set_of_two_roles_in_each_layer(gpt_program, layers):
    conflicts = analyse(gpt_program(layers)).conflicts
    assert [len(each) for each in conflicts.sets] == [2] * layers
    assert len(set(conflicts.color)) == 1
