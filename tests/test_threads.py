"""Threads: they plan, call and explain at once, and get what one thread alone would."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita import jitted
from partita.exclusive import Exclusive

THREADS = 8


@pytest.fixture(autouse=True)
def switching():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works):
    """What functions return that threads call all at the same moment."""
    barrier = threading.Barrier(len(works))
    found = [None] * len(works)

    def run(number, work):
        barrier.wait()
        try:
            found[number] = work()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def function(x, w):
    return jnp.tanh(x @ w)


def arrays(rows):
    return jnp.arange(rows * 8.0).reshape(rows, 8) / rows, jnp.eye(8) / 2


OPTIONS = {"mesh": "data=4", "hardware": "cpu", "tactics": pt.DataParallel("data")}


def slowly(monkeypatch):
    """Makes the moment long between a plan that is made and the function that is made of it."""
    exactly = jitted._exactly

    def waits(plan):
        time.sleep(0.02)
        return exactly(plan)

    monkeypatch.setattr(jitted, "_exactly", waits)


def test_a_function_plans_each_shape_once_whoever_calls(monkeypatch):
    slowly(monkeypatch)
    step = pt.jit(function, **OPTIONS)

    def calls(number):
        rows = (8, 16, 32, 8, 16)[number % 3 :]
        return [(r, step(*arrays(r))) for r in rows]

    for results in at_once(*(lambda n=n: calls(n) for n in range(THREADS))):
        for rows, made in results:
            assert jnp.allclose(made, function(*arrays(rows)))
    assert len(step.plans) == 3


def test_weak_types_and_static_arguments(monkeypatch):
    slowly(monkeypatch)
    step = pt.jit(lambda x, scale, power: (x * scale) ** power, static_argnums=2, **OPTIONS)
    x = jnp.arange(8.0)
    kinds = [(2.0, 1), (jnp.float32(2), 1), (2.0, 2), (jnp.float32(2), 2)]
    works = [lambda s=s, p=p: step(x, s, p) for s, p in kinds for _ in range(2)]
    for made, (_, power) in zip(at_once(*works), [k for k in kinds for _ in range(2)], strict=True):
        assert jnp.allclose(made, (2 * x) ** power)


def test_a_function_that_cannot_be_planned_fails_for_each_and_may_be_called_again():
    failing = [True]

    def sometimes(x, w):
        if failing[0]:
            raise ValueError("not yet")
        return function(x, w)

    step = pt.jit(sometimes, **OPTIONS)

    def fails():
        with pytest.raises(pt.TraceError, match="not yet"):
            step(*arrays(8))

    at_once(*[fails] * 4)
    failing[0] = False
    assert jnp.allclose(step(*arrays(8)), function(*arrays(8)))


def test_functions_that_call_each_other():
    inner = pt.jit(function, **OPTIONS)
    outer = [pt.jit(lambda x, w: inner(x, w) + 1, **OPTIONS) for _ in range(2)]
    x, w = arrays(8)
    for made in at_once(*(lambda f=f: f(x, w) - 1 for f in outer), lambda: inner(x, w)):
        assert jnp.allclose(made, function(x, w), atol=1e-6)


def shapes(rows):
    return jax.eval_shape(lambda: arrays(rows))


def mlp(x, w):
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return x.sum()


def planned(rows):
    searched = pt.AutomaticPartition(budget=30)
    return pt.plan(mlp, *shapes(rows), mesh="a=2,b=2", hardware="tpu_v5e", tactics=searched)


def test_plans_made_at_once_are_those_made_one_after_the_other():
    sizes = [16, 32, 48, 64]
    works = [lambda r=r: str(planned(r)) for r in sizes]
    assert at_once(*works) == [work() for work in works]


def test_threads_share_a_plan():
    looks = [
        lambda plan: str(plan),
        lambda plan: str(plan.explain("*")),
        lambda plan: str(plan.explain("collectives")),
        lambda plan: str(plan.then(pt.AutomaticPartition("b", budget=30))),
        lambda plan: str(plan.then(pt.ManualPartition({"w": 1}, axis="b"))),
        lambda plan: str(plan.memory()),
        lambda plan: plan.contents(),
        lambda plan: plan.jit()(*arrays(64)).tolist(),
    ]

    def made():
        by_hand = pt.ManualPartition({"x": 0}, axis="a")
        return pt.plan(mlp, *shapes(64), mesh="a=2,b=2", hardware="tpu_v5e", tactics=by_hand)

    alone, shared = made(), made()
    assert at_once(*(lambda look=look: look(shared) for look in looks)) == [
        look(alone) for look in looks
    ]


def test_a_lock_is_reentrant_and_no_part_of_what_is_copied():
    held = Exclusive()
    for other in (copy.copy(held), copy.deepcopy(held), pickle.loads(pickle.dumps(held))):
        with held, held:
            (entered,) = at_once(lambda o=other: o.__enter__() or True)
        assert entered
