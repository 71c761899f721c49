"""Combining all_reduces: what is told is what XLA does."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita import models
from partita.cost import combine, load
from partita.models.strategies import schedule

MIB = 2**20
UNLIMITED = 2**40


def planned(fn, *shapes, mesh="x=8", **tiled):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    tactics = [pt.ManualPartition({name: dim}, axis="x") for name, dim in tiled.items()]
    return pt.plan(fn, *arrays, mesh=mesh, hardware="tpu_v5e", tactics=tactics)


def found(plan, limit=UNLIMITED):
    """How many went into each, and their bytes."""
    return [(each.members, each.bytes) for each in combine(plan.spmd, limit)]


def two_sums(a, b):
    return a.sum(0), b.sum(0)


def a_sum_of_a_sum(a, b):
    total = a.sum(0)
    return (b * jnp.tanh(total)).sum(0)


def test_those_that_do_not_depend_on_each_other_become_one():
    plan = planned(two_sums, (8, 16), (8, 32), a=0, b=0)
    assert found(plan) == [(2, (16 + 32) * 4)]


def test_one_that_needs_another_stays_apart():
    plan = planned(a_sum_of_a_sum, (8, 16), (8, 16), a=0, b=0)
    assert found(plan) == [(1, 64), (1, 64)]


def test_up_to_a_number_of_bytes():
    plan = planned(two_sums, (8, 16), (8, 32), a=0, b=0)
    assert found(plan, 192) == [(2, 192)]
    assert found(plan, 191) == [(1, 64), (1, 128)]


def test_different_sums_and_types_stay_apart():
    def fn(a, b, c):
        return a.sum(0), b.max(0), c.astype(jnp.bfloat16).sum(0)

    plan = planned(fn, (8, 16), (8, 16), (8, 16), a=0, b=0, c=0)
    assert [members for members, _ in found(plan)] == [1, 1, 1]


def test_no_two_wait_for_each_other_when_combined():
    """a and a2 could be one, and b and b2; but not both, as then each would need the other."""

    def fn(a, b, c, d):
        total, other = a.sum(0), b.max(0)
        b2 = (c * jnp.tanh(total)).max(0)  # needs the sum of a
        a2 = (d * jnp.tanh(other)).sum(0)  # needs the maximum of b
        return b2, a2

    plan = planned(fn, *[(8, 16)] * 4, a=0, b=0, c=0, d=0)
    assert sorted(members for members, _ in found(plan)) == [1, 1, 2]


def test_a_loop_combines_its_own():
    def fn(xs):
        def one(_, x):
            return None, (x.sum(0), jnp.tanh(x).sum(0))

        return jax.lax.scan(one, None, xs)[1], xs.sum((0, 1))

    plan = planned(fn, (4, 8, 16), xs=1)
    assert sorted((each.members, each.times) for each in combine(plan.spmd, UNLIMITED)) == [
        (1, 1),
        (2, 4),
    ]
    assert plan.combined["all_reduce", ("x",)].count == 1 + 4


def test_latency_counts_once_for_those_that_are_combined():
    plan = planned(two_sums, (8, 16), (8, 32), a=0, b=0)
    alone, together = plan.estimate.traffic["all_reduce", ("x",)], plan.combined
    assert (alone.count, together["all_reduce", ("x",)].count) == (2, 1)
    assert 0.4 < together["all_reduce", ("x",)].seconds / alone.seconds < 0.6  # mostly latency
    assert "time combined" in str(plan)


def test_hardware_says_up_to_how_many_bytes():
    assert load("h100").combine.value == 30 * MIB + 7
    assert "XLA" in load("h100").combine.source


def compiled_all_reduces(plan, model):
    """How many all-reduce instructions XLA's CPU compiler leaves."""
    jitted = plan.jit(donate_argnums=model.donate_argnums)
    text = jitted.lower(*model.args).compile().as_text()
    return len(re.findall(r"= (?:\(.*?\)|\S+) all-reduce(?:-start)?\(", text))


@pytest.mark.parametrize("strategy", ["data-parallel", "tensor-parallel"])
@pytest.mark.parametrize("name", ["mlp", "gpt-tiny"])
def test_xla_combines_the_same(name, strategy):
    model = models.build(name) if name == "mlp" else models.build(name, dtype=jnp.float32)
    how = schedule(name, strategy)
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh=how.mesh,
        hardware="cpu",
        tactics=list(how.tactics),
        donate_argnums=model.donate_argnums,
    )
    told = combine(plan.spmd, int(plan.hardware.combine.value))
    assert compiled_all_reduces(plan, model) == len(told) < plan.spmd.counts()["all_reduce"]
