"""Combined collectives: how many are left, as in XLA's programs, and the time of a step.

What becomes one waits once for the network.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import msgspec
import pytest

import partita as pt
from partita import models
from partita.cost import load
from partita.models.strategies import schedule
from partita.program.collectives import ALL_GATHER, ALL_REDUCE

V5E = load("tpu_v5e")
MIB = 2**20
SUM = 2 * 7e-6
"""Seconds of latency of an all_reduce along a line of 8: there and back over 7 hops."""


def planned(fn, *shapes, hardware=V5E, mesh="x=8", **tiled):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    tactics = [pt.ManualPartition({name: dim}, axis="x") for name, dim in tiled.items()]
    return pt.plan(fn, *arrays, mesh=mesh, hardware=hardware, tactics=tactics)


def saved(fn, *shapes, **tiled):
    """How much less compute waits, as the compiler combines."""
    apart = msgspec.structs.replace(V5E, combined=())
    together = planned(fn, *shapes, **tiled).estimate
    alone = planned(fn, *shapes, hardware=apart, **tiled).estimate
    assert alone.traffic == together.traffic
    assert alone.compute_time == together.compute_time
    return alone.exposed_time - together.exposed_time


def sums(*arrays):
    return [a.sum(0) for a in arrays]


def test_sums_that_do_not_need_each_other_wait_once():
    assert saved(lambda a, b, c: sums(a, b, c), *[(8, 16)] * 3, a=0, b=0, c=0) == pytest.approx(
        2 * SUM
    )


def test_sums_that_need_each_other_wait_each():
    def fn(a, b):
        return (b * jnp.tanh(a.sum(0))).sum(0)

    assert saved(fn, (8, 16), (8, 16), a=0, b=0) == 0


def test_gradients_of_all_layers_become_one_and_activations_none():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return (x * x).sum()

    def fn(x, a, b, c):
        return jax.grad(loss)([a, b, c], x)

    weights = [(16, 16)] * 3
    assert saved(fn, (8, 16), *weights, x=0) == pytest.approx(2 * SUM)
    assert saved(fn, (8, 16), *weights, x=1) == 0  # contracted: forward, and then nothing


def test_up_to_a_number_of_bytes():
    limit = msgspec.structs.replace(V5E.combine, value=150.0)
    alone = msgspec.structs.replace(V5E, combined=())
    few = msgspec.structs.replace(V5E, combine=limit)

    def exposed(hardware):  # four sums of 64 bytes
        plan = planned(
            lambda a, b, c, d: sums(a, b, c, d),
            *[(8, 16)] * 4,
            hardware=hardware,
            a=0,
            b=0,
            c=0,
            d=0,
        )
        return plan.estimate.exposed_time

    assert exposed(alone) - exposed(few) == pytest.approx(2 * SUM)
    larger = msgspec.structs.replace(V5E, combine=msgspec.structs.replace(limit, value=63.0))
    assert exposed(alone) == exposed(larger)


def test_a_loop_combines_in_every_iteration():
    def fn(xs):
        return jax.lax.scan(lambda _, x: (None, (x.sum(0), jnp.tanh(x).sum(0))), None, xs)[1]

    assert saved(fn, (4, 8, 16), xs=1) == pytest.approx(4 * SUM)


@pytest.mark.parametrize("kinds", [(ALL_REDUCE.name,), (ALL_REDUCE.name, ALL_GATHER.name)])
def test_only_the_kinds_that_the_compiler_combines(kinds):
    def exposed(combined):
        hardware = msgspec.structs.replace(V5E, combined=combined, overlapped=())
        plan = planned(
            lambda x, a, b: (x @ a, x @ b),
            *[(8, 16), (16, 16), (16, 16)],
            hardware=hardware,
            x=0,
            a=1,
            b=1,
        )
        assert plan.estimate.traffic[ALL_GATHER.name, ("x",)].count == 2
        return plan.estimate.exposed_time

    gather = 7e-6
    expected = gather if ALL_GATHER.name in kinds else 0
    assert exposed(()) - exposed(kinds) == pytest.approx(expected)


def left(fn, *shapes, limit=2.0**40, **tiled):
    """The numbers of all_reduces before and after combining, with a limit of bytes."""
    hardware = msgspec.structs.replace(
        V5E, combine=msgspec.structs.replace(V5E.combine, value=limit)
    )
    plan = planned(fn, *shapes, hardware=hardware, **tiled)
    key = ALL_REDUCE.name, ("x",)
    return plan.estimate.traffic[key].count, plan.combined[key].count


def two_sums(a, b):
    return a.sum(0), b.sum(0)


def test_those_that_do_not_depend_on_each_other_become_one():
    assert left(two_sums, (8, 16), (8, 32), a=0, b=0) == (2, 1)


def test_one_that_needs_another_stays_apart():
    def fn(a, b):
        return (b * jnp.tanh(a.sum(0))).sum(0)

    assert left(fn, (8, 16), (8, 16), a=0, b=0) == (2, 2)


@pytest.mark.parametrize(("limit", "count"), [(192.0, 1), (191.0, 2)])
def test_results_together_have_at_most_a_number_of_bytes(limit, count):
    assert left(two_sums, (8, 16), (8, 32), limit=limit, a=0, b=0) == (2, count)


def test_different_sums_and_types_stay_apart():
    def fn(a, b, c):
        return a.sum(0), b.max(0), c.astype(jnp.bfloat16).sum(0)

    assert left(fn, (8, 16), (8, 16), (8, 16), a=0, b=0, c=0) == (3, 3)


def test_no_two_wait_for_each_other_when_combined():
    """a and a2 could be one, or b and b2; but not both, as then each would need the other."""

    def fn(a, b, c, d):
        total, other = a.sum(0), b.max(0)
        b2 = (c * jnp.tanh(total)).max(0)  # needs the sum of a
        a2 = (d * jnp.tanh(other)).sum(0)  # needs the maximum of b
        return b2, a2

    assert left(fn, *[(8, 16)] * 4, a=0, b=0, c=0, d=0) == (4, 4)


def test_a_loop_combines_its_own():
    def fn(xs):
        def one(_, x):
            return None, (x.sum(0), jnp.tanh(x).sum(0))

        return jax.lax.scan(one, None, xs)[1], xs.sum((0, 1))

    assert left(fn, (4, 8, 16), xs=1) == (1 + 2 * 4, 1 + 4)


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


@pytest.mark.parametrize(
    ("name", "strategy", "more"),
    [
        ("mlp", "data-parallel", 0),
        ("mlp", "tensor-parallel", 0),
        ("gpt-tiny", "data-parallel", 0),
        ("gpt-tiny", "tensor-parallel", 1),  # sums with other numbers of sums after them
    ],
)
def test_xla_combines_the_same(name, strategy, more):
    """What is left, or a known number more of them than XLA leaves."""
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
    combined = sum(each.count for each in plan.combined.values())
    assert combined - more == compiled_all_reduces(plan, model) < plan.spmd.counts()["all_reduce"]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("mlp", "data-parallel"),
        ("mlp", "tensor-parallel"),
        ("gpt-tiny", "data-parallel"),
        ("gpt-tiny", "tensor-parallel"),
        ("gns-tiny", "data-parallel"),
    ],
)
def test_the_step_waits_as_long_as_the_report_says(name, strategy):
    """`plan.combined` has the latencies that the step time leaves out, and no others."""
    how = schedule(name, strategy)
    model = models.build(name)
    apart = msgspec.structs.replace(V5E, combined=())
    here, alone = (
        pt.plan(model.fn, *model.args, mesh=how.mesh, hardware=hardware, tactics=how.tactics)
        for hardware in (V5E, apart)
    )
    traffic = alone.estimate.traffic
    less = sum(
        traffic[key].seconds - found.seconds
        for key, found in here.combined.items()
        if key[0] == ALL_REDUCE.name
    )
    fewer = alone.estimate.exposed_time - here.estimate.exposed_time
    assert fewer == pytest.approx(less)


def test_a_search_splits_no_biases_to_save_what_is_one_sum_anyway():
    def loss(params, x):
        for w, b in params:
            x = jax.nn.relu(x @ w + b)
        return (x * x).mean()

    def step(params, x):
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    def searched(hardware):
        """The arguments that a search splits, and the kinds of collectives of its plan."""
        f32 = jnp.float32
        layer = jax.ShapeDtypeStruct((256, 256), f32), jax.ShapeDtypeStruct((256,), f32)
        plan = pt.plan(
            step,
            [layer] * 6,
            jax.ShapeDtypeStruct((65536, 256), f32),
            mesh="x=4,y=2",
            hardware=hardware,
            tactics=[pt.AutomaticPartition()],
        )
        names, layouts = plan.program.argument_names, plan.spmd.argument_layouts
        split = [n for n, layout in zip(names, layouts, strict=True) if any(layout)]
        return split, {kind for kind, _ in plan.estimate.traffic}

    assert searched(V5E) == (["x"], {ALL_REDUCE.name})
    _, kinds = searched(msgspec.structs.replace(V5E, combined=()))
    assert kinds > {ALL_REDUCE.name}
