"""Local actions: one class of operations or values is laid out otherwise, and what goes with it."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from partita.decisions import NOWHERE, ShardClass


@pytest.fixture
def take(bench):
    """`take(bench, kind, member, axis, place)`: what a local action takes from the empty tiling."""

    def take(b, kind, member, axis, place):
        return ShardClass(kind, member, axis, place).take(b.propagator, b.untiled)

    return take


def test_an_axis_goes_to_one_class_and_nowhere_else(bench, take):
    b = bench(lambda w, x: jnp.tanh(x @ w), "f32[8,8]", "f32[16,8]")
    product = next(op.op.index for op in b.graph.ops if op.op.traits.product)
    taken = take(b, "op", product, 0, 0)
    assert set(taken.ops) == {product}
    assert not taken.values
    back = ShardClass("op", product, 0, NOWHERE).take(b.propagator, taken.tiling)
    assert back.tiling == b.untiled


def test_a_dimension_that_an_operation_cannot_have_split_stays_whole(bench, take):
    b = bench(lambda x: jnp.sort(x, axis=1), "f32[16,8]")
    (sort,) = (op for op in b.graph.ops if any(f.kind == "blocked" for f in op.op.rule.factors))
    blocked = [f.kind for f in sort.op.rule.factors].index("blocked")
    assert not take(b, "op", sort.op.index, 0, blocked).ops
    assert take(b, "op", sort.op.index, 0, 1 - blocked).ops


def test_values_that_share_a_buffer_stay_alike(bench, take):
    b = bench(lambda w, x: w - x.sum(0), "f32[8]", "f32[16,8]", donate=0)
    argument = b.value("w")
    (result,) = b.graph.values[argument].aliases
    for member in (argument, result):
        taken = take(b, "value", member, 0, 0)
        assert set(taken.values) == {argument, result}
        assert taken.tiling.values[argument] == taken.tiling.values[result] == ((0,),)
