"""What nothing reads an element of is dropped before planning, as compilers drop it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import numbers, runs_as_the_original


def ends(x):
    """Reads both ends of a field, each of two times another one."""

    def padded():
        return jnp.concatenate([x[-1:], x, x[:1]])

    return padded()[2:] - padded()[:-2]


def edges(x):
    return 2 * jnp.pad(
        jnp.broadcast_to(x[..., None], (*x.shape, 8)), [(0, 0)] * 2 + [(2, 2)], "edge"
    )


def middle(x):
    """Of four operands the two in the middle are read, and of these a part."""
    return jnp.concatenate([jnp.sort(x, axis=0), x, -x, x * 2])[20:30:3]


def parts(x):
    """Each operand of a concatenation is read, and so are results that are kept whole."""
    both = jnp.concatenate([x, -x])
    return both[:3], both[16:], both


def nothing(x):
    """Results without elements, of several types."""
    none = jnp.sort(x, axis=0)[:0]
    return none, none > 1, none.astype(jnp.complex64), none.astype(jnp.int4), none.sum()


def joined_with_nothing(x):
    return jnp.concatenate([jnp.sort(x, axis=0)[:0], x, x[16:]]), jnp.concatenate([x[:0], x[:0]])


def chosen(x):
    return jnp.where(True, x, jnp.sort(x, axis=0)), jnp.where(False, jnp.sort(x, axis=0), x * 2)


def chosen_each(x):
    return jnp.where(jnp.array([True, False] * 8)[:, None], x, jnp.sort(x, axis=0))


def replaced(x):
    return lax.dynamic_update_slice(jnp.sort(x, axis=0), x * 2, (0, 0))


def replaced_in_part(x):
    return lax.dynamic_update_slice(jnp.sort(x, axis=0), x[:8] * 2, (8, 0))


def branches(x):
    """Of two branches, and of three, the same one is always taken."""
    one = lax.cond(True, lambda x: jnp.sin(x) * 2, lambda x: jnp.sort(x, axis=0), x)
    return lax.switch(7, [jnp.cos, lambda x: jnp.sort(x, axis=0), lambda x: jnp.tanh(x + one)], x)


def branches_of_a_loop(x):
    def step(carry, row):
        done = lax.cond(False, lambda: jnp.sort(x, axis=0)[0] + row, lambda: row * 2)
        return carry + done, done

    return lax.scan(step, jnp.zeros(4), x)


def branches_of_data(x):
    return lax.cond(x[0, 0] > 0, lambda x: jnp.sort(x, axis=0), lambda x: x * 2, x)


def in_a_loop(x):
    def step(carry, row):
        return carry + jnp.concatenate([jnp.sort(x, axis=0)[0], row, row[4:]])[4:], row[:0]

    return lax.scan(step, jnp.zeros(4), x)


X = numbers(16, 4)
CASES = {
    "ends": (ends, "concatenate", 2),
    "edges": (edges, "slice", 2),
    "middle": (middle, "sort", 0),
    "parts": (parts, "concatenate", 1),
    "nothing": (nothing, "sort", 0),
    "joined with nothing": (joined_with_nothing, "sort", 0),
    "chosen": (chosen, "sort", 0),
    "chosen for each": (chosen_each, "sort", 1),
    "replaced": (replaced, "sort", 0),
    "replaced in part": (replaced_in_part, "sort", 1),
    "branches": (branches, "sort", 0),
    "branches of a loop": (branches_of_a_loop, "sort", 0),
    "branches of data": (branches_of_data, "sort", 1),
    "in a loop": (in_a_loop, "sort", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_left(name):
    fn, kind, count = CASES[name]
    plan = pt.plan(fn, X, mesh="x=4", hardware="cpu", tactics=[pt.ManualPartition({"x": 0}, "x")])
    assert [op.short for op in plan.program.operations].count(kind) == count
    runs_as_the_original(plan, X)


def test_edges_of_no_width_move_nothing():
    plan = pt.plan(
        edges, X, mesh="x=4", hardware="cpu", tactics=[pt.ManualPartition({"x": 0}, "x")]
    )
    assert plan.collectives == ()


def test_only_the_ends_that_are_read_are_moved():
    u = numbers(64)
    plan = pt.plan(ends, u, mesh="x=8", hardware="cpu", tactics=[pt.ManualPartition({"x": 0}, "x")])
    assert [c.kind for c in plan.collectives].count("all_reduce") == 2
    assert plan.verify().collectives.equal


def test_gradients_are_the_same():
    fn = jax.grad(lambda x: (ends(x) ** 2).sum() + (edges(x) ** 2).sum())
    plan = pt.plan(fn, X, mesh="x=4", hardware="cpu", tactics=[pt.ManualPartition({"x": 0}, "x")])
    runs_as_the_original(plan, X)
