"""What XLA makes of collectives on a host: each rule compiled, and what it does not excuse."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import array
from partita.verify.collectives import Found
from partita.verify.comparison import hlo_collective, side_by_side
from partita.verify.host_rewrites import HOST_REWRITES, on_host


def planned(fn, *args, mesh="x=8", **split):
    tactics = [pt.ManualPartition(split, "x")]
    return pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=tactics)


def rewrites(plan):
    return [[b.rewrite for b in becomes] for becomes in on_host(plan.spmd)]


def guided(x, w, t):
    """A batch that is read twice, the second time with a part that is zero."""
    both = jnp.tanh(jnp.concatenate([x, x]) @ w + jnp.concatenate([t, jnp.zeros_like(t)]))
    with_, without = jnp.split(both, 2)
    return without + 7.5 * (with_ - without)


def computed(x):
    return jnp.concatenate([x, jnp.exp(jnp.zeros_like(x) + 1) * 3]) * 2


def counted(x):
    """Gathers what differs from element to element."""
    return jnp.concatenate([x, lax.broadcasted_iota(jnp.float32, x.shape, 0)]) * 2


def equal(x):
    """Sums that are equal, which a host does not merge."""
    return jnp.tanh(jnp.cos(x).sum(0)), jnp.cos(x).sum(0)


ROWS = array(64, 32)
CASES = {
    "guided": (
        lambda: planned(guided, ROWS, array(32, 16), array(64, 16), x=0, t=0),
        [[], [], [], ["constant"], [], []],
    ),
    "computed": (lambda: planned(computed, ROWS, x=0), [[], ["constant"]]),
    "counted": (lambda: planned(counted, ROWS, x=0), [[], []]),
    "equal": (lambda: planned(equal, ROWS, x=0), [[], []]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_compiler_does_as_the_rules_say(name):
    make, expected = CASES[name]
    plan = make()
    assert rewrites(plan) == expected
    found = plan.verify()
    assert found.passed, f"\n{found}"
    assert set(found.collectives.rewrites) == {r for each in expected for r in each}


def test_a_report_says_what_was_rewritten():
    found = planned(computed, ROWS, x=0).verify()
    assert found.collectives.agreement == "rewritten"
    assert f"1 x constant: {HOST_REWRITES['constant']}" in str(found)
    assert found.as_dict()["rewrites"] == {"constant": 1}


@pytest.mark.parametrize("made", [0, 1, 2, 3])
def test_what_is_missing_or_too_many_still_differs(made):
    """One of two gathers may be gone; not both, and none may be added."""
    plan = planned(computed, ROWS, x=0)
    ours = [hlo_collective(each, plan.mesh) for each in plan.collectives]
    assert ours[0] == ours[1]
    found = [Found(ours[0], 1, False)] * made
    comparison = side_by_side(plan.collectives, plan.mesh, found, becomes=on_host(plan.spmd))
    assert comparison.explained == (made in (1, 2))
    verified = dataclasses.replace(plan.verify(), collectives=comparison)
    assert verified.passed == comparison.explained


WIDENED = {
    "int4": 2, "uint4": 2, "float4_e2m1fn": 4, "float8_e8m0fnu": 4, "float8_e4m3fn": 2,
    "float8_e5m2": 2, "bfloat16": 2, "float16": 1, "uint8": 1, "int2": 1, "bool": 1,
}  # fmt: skip


@pytest.mark.parametrize("dtype", WIDENED)
def test_narrow_types_are_counted_as_a_host_moves_them(dtype):
    """Of an odd number of elements: packed ones are rounded up to bytes."""
    plan = planned(
        lambda x: x.reshape(3, 8, 5).transpose(1, 0, 2),
        array(24, 5, dtype=getattr(jnp, dtype)),
        x=0,
    )
    found = plan.verify()
    assert found.passed, f"\n{found}"
    ((collective, *_),) = found.collectives.rows()
    assert abs(collective.bytes - plan.collectives[0].bytes * WIDENED[dtype]) < WIDENED[dtype]
