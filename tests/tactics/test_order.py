"""Order: tactics on different axes commute where both fit, on one axis the earlier wins.

Both *fit* if, in either order, no request is refused, no propagation is blocked, no conflict is
left open, and every request takes the first dimension that it names. Layouts are compared with the
axes of each dimension as a set: who comes first is the outer one.
"""

from __future__ import annotations

import string

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import partita as pt
from partita import models

SIZES = (4, 6, 8, 12)
"""Not all divide by every axis, nor by two together."""


@st.composite
def programs(draw):
    """A small program as `(fn, args)`: products, sums and elementwise steps on named dimensions."""
    letters = string.ascii_lowercase[: draw(st.integers(2, 4))]
    size = {letter: draw(st.sampled_from(SIZES)) for letter in letters}
    word = st.lists(st.sampled_from(letters), min_size=1, max_size=3, unique=True).map("".join)
    inputs = draw(st.lists(word, min_size=2, max_size=4))
    steps = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), word), max_size=5))

    def fn(*args):
        made = list(zip(inputs, args, strict=True))
        for a, b, wanted in steps:
            (x, left), (y, right) = made[a % len(made)], made[b % len(made)]
            result = "".join(c for c in wanted if c in x + y) or (x + y)[0]
            made.append((result, jnp.tanh(jnp.einsum(f"{x},{y}->{result}", left, right))))
        return tuple(value for _, value in made[-2:])

    args = [jax.ShapeDtypeStruct([size[c] for c in word], jnp.float32) for word in inputs]
    return fn, args


def tactics(args, axis):
    """A manual tactic on one or two arguments."""
    one = st.integers(0, len(args) - 1).flatmap(
        lambda n: st.tuples(st.just(f"args[{n}]"), st.integers(0, len(args[n].shape) - 1))
    )
    requests = st.lists(one, min_size=1, max_size=2)
    return requests.map(lambda pairs: pt.ManualPartition(dict(pairs), axis=axis))


def plan(fn, args, *tactics, mesh="a=2,b=2"):
    return pt.plan(fn, *args, mesh=mesh, hardware="tpu_v5e", tactics=tactics)


def fits(p):
    return not any(entry.refused or entry.blocked or entry.conflicts for entry in p.history)


def unordered(p):
    """The layouts of all operations and values, axes as sets."""
    return [
        [tuple(map(frozenset, layout)) for layout in rows]
        for rows in (p.assignment.ops, p.assignment.values)
    ]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_tactics_on_different_axes_commute_where_both_fit(data):
    fn, args = data.draw(programs())
    first, second = data.draw(tactics(args, "a")), data.draw(tactics(args, "b"))
    one, other = plan(fn, args, first, second), plan(fn, args, second, first)
    assume(fits(one) and fits(other))
    assert unordered(one) == unordered(other)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_on_one_axis_the_earlier_wins(data):
    fn, args = data.draw(programs())
    first, second = data.draw(tactics(args, "a")), data.draw(tactics(args, "a"))
    before, after = plan(fn, args, first), plan(fn, args, first, second)
    for rows, then in (
        (before.assignment.ops, after.assignment.ops),
        (before.assignment.values, after.assignment.values),
    ):
        for layout, later in zip(rows, then, strict=True):
            if any(layout):
                assert later == layout


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_applied_one_by_one_is_applied_at_once(data):
    fn, args = data.draw(programs())
    first = data.draw(tactics(args, data.draw(st.sampled_from("ab"))))
    second = data.draw(tactics(args, data.draw(st.sampled_from("ab"))))
    at_once, by_one = plan(fn, args, first, second), plan(fn, args).then(first).then(second)
    assert by_one.assignment == at_once.assignment
    assert by_one.estimate == at_once.estimate
    assert str(by_one) == str(at_once)


MODEL = models.build("gpt-tiny")


def gpt(*tactics):
    return plan(MODEL.fn, MODEL.args, *tactics, mesh="data=2,model=4")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pt.DataParallel(), pt.Megatron()),
        (pt.DataParallel(), pt.SequenceParallel()),
        (pt.FullyShardedDataParallel(), pt.Megatron()),
    ],
    ids=lambda tactic: tactic.name,
)
def test_ready_made_tactics_on_different_axes_commute(first, second):
    one, other = gpt(first, second), gpt(second, first)
    assert not any(entry.refused for entry in (*one.history, *other.history))
    assert unordered(one) == unordered(other)


def test_on_one_axis_order_makes_the_difference():
    on_data = pt.ZeRO(3, "data"), pt.DataParallel("data")
    one, other = gpt(*on_data), gpt(*reversed(on_data))
    assert unordered(one) != unordered(other)
    assert other.spmd.counts()["reduce_scatter"] == 18
