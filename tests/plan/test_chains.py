"""Long chains of operations: nothing recurses along them, or takes time with their square."""

from __future__ import annotations

import inspect
import sys

import jax
import jax.numpy as jnp
import pytest

import partita as pt

LENGTH, ROOM = 320, 250
"""Operations of a chain, and how much deeper calls may nest while it is planned: not once for each
operation."""


@pytest.fixture
def shallow():
    """Python gives up where calls nest deeper than JAX needs."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + ROOM)
    yield
    sys.setrecursionlimit(before)


def repeated(*functions):
    """A chain of these functions in turn."""

    def chain(x, length=LENGTH):
        for number in range(length):
            x = functions[number % len(functions)](x)
        return x

    return chain


def layers(chain):
    """What a loop does with each layer of a stack, which it reads and writes in part."""

    def fn(stack, w):
        def body(carry, layer):
            out = chain(layer) @ w
            return carry + out.sum(), out

        return jax.lax.scan(body, 0.0, stack)

    return fn


RESHAPES = repeated(lambda x: x.reshape(64, 8, 4), lambda x: x.reshape(64, 32))

CHAINS = {
    "reshapes": RESHAPES,
    "transposes": repeated(jnp.transpose),
    "types": repeated(lambda x: x.astype(jnp.bfloat16), lambda x: x.astype(jnp.float32)),
    "elementwise": repeated(jnp.sin, lambda x: x * 1.5, lambda x: x + x),
    "broadcasts": repeated(lambda x: jnp.broadcast_to(x[:1], x.shape)),
    "slices": repeated(lambda x: jnp.concatenate([x[1:], x[:1]])),
    "updates": repeated(lambda x: jax.lax.dynamic_update_slice(x, x[:1], (3, 0))),
    "products": repeated(lambda x: x @ jnp.ones((32, 32), x.dtype)),
    "sums": repeated(lambda x: x + x.sum(0)),
}


def abstract(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.usefixtures("shallow")
def test_nothing_recurses_along_a_chain(kind, tmp_path):
    fn, file = CHAINS[kind], tmp_path / "plan.json"
    by_hand = pt.ManualPartition({"x": 0}, axis="a")
    plan = pt.plan(fn, abstract(64, 32), mesh="a=4,b=2", hardware="cpu", tactics=by_hand)
    plan = plan.then(pt.AutomaticPartition("b", budget=4))
    assert "a" in plan.in_shardings[0][0]
    assert str(plan.explain("*")) and str(plan.explain("collectives", 0))
    plan.report(tmp_path / "page.html")
    plan.save(file)
    assert pt.load(file, fn, abstract(64, 32)).in_shardings == plan.in_shardings


@pytest.mark.parametrize(
    ("fn", "shapes", "split"),
    [
        (RESHAPES, [(64, 32)], {"x": 0}),
        (layers(RESHAPES), [(8, 64, 32), (32, 32)], {"stack": 1}),
        (jax.grad(lambda x: RESHAPES(jnp.sin(x)).sum()), [(64, 32)], {"x": 0}),
    ],
    ids=["a chain", "in a loop", "backwards"],
)
@pytest.mark.usefixtures("shallow")
def test_nor_where_it_is_compiled(fn, shapes, split):
    shapes, by_hand = [abstract(*shape) for shape in shapes], pt.ManualPartition(split, axis="a")
    made = pt.plan(fn, *shapes, mesh="a=4", hardware="cpu", tactics=by_hand)
    assert made.verify().passed


def test_a_chain_of_three_thousand(tmp_path):
    def fn(x):
        for number in range(1500):
            x = jnp.sin(x).T if number % 100 == 0 else x.reshape(8, 4, 64)
            x = x.reshape(32, 64).T if number % 2 else x.reshape(64, 32)
        return x

    plan = pt.plan(fn, abstract(64, 32), mesh="a=4", hardware="cpu", budget=4)
    assert str(plan.explain("x"))
    plan.save(tmp_path / "plan.json")
