"""Static and donated arguments: marked as `jax.jit` marks them, by position or by name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import assert_same, numbers

OPTIONS = {
    "mesh": "data=4",
    "hardware": "cpu",
    "tactics": [pt.ManualPartition({"x": 0}, axis="data")],
}
X = numbers(16, 8)


def fn(x, times, kind="sin"):
    return getattr(jnp, kind)(x) * times


MARKS = {
    "numbers": {"static_argnums": (1, 2)},
    "names": {"static_argnames": ("times", "kind")},
    "one number and one name": {"static_argnums": 1, "static_argnames": "kind"},
}
CALLS = {
    "by position": ((X, 3, "cos"), {}),
    "by name": ((X, 3), {"kind": "cos"}),
    "all by name": ((), {"kind": "cos", "times": 3, "x": X}),
    "by default": ((X, 3), {}),
}


def works(marks, args, kwargs):
    try:
        return jax.jit(fn, **marks)(*args, **kwargs)
    except TypeError:
        return None


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mark", MARKS)
def test_static_arguments_are_marked_as_for_jax(mark, call):
    """What `jax.jit` takes, `plan` and `jit` take, from the user's own `jax.jit`, too."""
    marks, (args, kwargs) = MARKS[mark], CALLS[call]
    theirs = works(marks, args, kwargs)
    own = jax.jit(fn, **marks)
    ways = {
        "plan": lambda: pt.plan(fn, *args, **OPTIONS, **marks, **kwargs).jit()(*args, **kwargs),
        "plan of jit": lambda: pt.plan(own, *args, **OPTIONS, **kwargs).jit()(*args, **kwargs),
        "jit": lambda: pt.jit(fn, **OPTIONS, **marks)(*args, **kwargs),
        "jit of jit": lambda: pt.jit(own, **OPTIONS)(*args, **kwargs),
    }
    for way in ways.values():
        if theirs is None:
            with pytest.raises(pt.TraceError, match="kind of fn is no array, but a str"):
                way()
        else:
            assert_same(way(), theirs)


@pytest.mark.parametrize("saved", [False, True])
def test_a_plan_is_for_its_static_arguments(saved, tmp_path):
    p = pt.plan(fn, X, 3, "cos", static_argnums=(1, 2), **OPTIONS)
    if saved:
        p.save(tmp_path / "plan.json")
        p = pt.load(tmp_path / "plan.json", fn, X, 3, "cos", static_argnums=(1, 2))
        made = pt.jit(fn, saved=tmp_path / "plan.json", static_argnames=("times", "kind"))
        assert_same(made(X, 3, "cos"), fn(X, 3, "cos"))
    assert p.in_shardings == (P("data"),)
    assert [leaf.shape for leaf in jax.tree.leaves(p.arguments)] == [(16, 8)]
    assert p.program.argument_names == ("x",)
    placed = p.shard(X, 3, "cos")
    assert placed[1:] == (3, "cos")
    assert_same(p.jit()(*placed), fn(X, 3, "cos"))
    assert_same(p.jit().lower(X, 3, "cos").compile()(X), fn(X, 3, "cos"))
    assert_same(p.core.run(X), fn(X, 3, "cos"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            (X, 4, "cos"),
            "fn is planned for the static argument at position 1 of 3, and 4 came; plan for that, "
            "or use pt.jit, which plans for each",
        ),
        (
            (X, 3),
            "fn is planned for the static argument at position 2 of 'cos', which is missing; give "
            "it as in the call that was planned",
        ),
        (
            (numbers(4, 4), 3, "cos"),
            "x of fn is planned as float32[16,8], and float32[4,4] came; convert it, or use "
            "pt.jit, which plans for each shape and type",
        ),
    ],
)
def test_other_static_arguments_are_refused(args, message):
    p = pt.plan(fn, X, 3, "cos", static_argnums=(1, 2), **OPTIONS)
    for call in (p.jit(), p.jit().lower):
        with pytest.raises(pt.ArgumentError) as error:
            call(*args)
        assert str(error.value) == message


def test_what_follows_a_static_argument_keeps_its_name():
    def after(kind, x):
        return getattr(jnp, kind)(x)

    p = pt.plan(after, "sin", X, static_argnums=0, **OPTIONS)
    assert p.in_shardings == (P("data"),)
    with pytest.raises(pt.ArgumentError, match=r"^x of after is planned as float32\[16,8\]"):
        p.jit()("sin", X[:4])
    with pytest.raises(pt.TraceError, match=r"^x of after is no array, but a str"):
        pt.plan(after, "sin", "x", static_argnums=0, **OPTIONS)


def test_jit_plans_once_for_each_static_argument():
    planned = pt.jit(fn, static_argnames="kind", **OPTIONS)
    for kind in ("sin", "cos", "sin", "cos"):
        assert_same(planned(X, 2.0, kind=kind), fn(X, 2.0, kind))
    assert len(planned.plans) == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: pt.plan(fn, X, 3, static_argnums=7, **OPTIONS),
            pt.TraceError,
            r"fn cannot be called so: .*static_argnums=\(7,\)",
        ),
        (
            lambda: pt.jit(fn, static_argnames="shape", **OPTIONS),
            pt.TraceError,
            "fn cannot be called so: .*shape",
        ),
        (
            lambda: pt.jit(fn, static_argnums=1, **OPTIONS)(X, [3]),
            pt.ArgumentError,
            "a static argument of fn cannot be hashed .*; pass a tuple for a list",
        ),
        (
            lambda: pt.plan(fn, X, [3], static_argnums=1, **OPTIONS),
            pt.TraceError,
            "Non-hashable static arguments",
        ),
        (
            lambda: pt.plan(fn, X, 3, "cos", **OPTIONS),
            pt.TraceError,
            "kind of fn is no array, but a str .* name what is part of the program in "
            "static_argnames",
        ),
    ],
)
def test_static_arguments_that_cannot_be(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_file_has_no_static_arguments(tmp_path):
    (tmp_path / "sin.mlir").write_text(jax.jit(jnp.sin).lower(X).as_text())
    with pytest.raises(pt.TraceError, match="sin is read from a file: none of its arguments are"):
        pt.plan(tmp_path / "sin.mlir", mesh="data=4", hardware="cpu", static_argnums=0)


def test_what_is_simulated_takes_them_too():
    options = {"mesh": "data=4", "hardware": "cpu", "in_shardings": (P("data"),)}
    p = pt.simulate(fn, X, 3, "cos", static_argnums=(1, 2), **options)
    assert p.out_shardings == P("data")
    assert_same(p.jit()(X, 3, "cos"), fn(X, 3, "cos"))


# ------------------------------------------------------------------------------------ donation


UNTILED = {**OPTIONS, "tactics": []}
MESH = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))


def update(rate, state, steps=2):
    return state - rate * steps


DONATED = {
    "number": ({"donate_argnums": 1}, lambda f, s: f(0.1, s), ((1,), ())),
    "name": ({"donate_argnames": "state"}, lambda f, s: f(0.1, s), ((1,), ())),
    "name, by name": ({"donate_argnames": "state"}, lambda f, s: f(0.1, state=s), ((), ("state",))),
    "number, by name": ({"donate_argnums": 1}, lambda f, s: f(0.1, state=s), ((), ("state",))),
    "after a static one": (
        {"donate_argnums": 1, "static_argnums": 0},
        lambda f, s: f(0.1, s),
        ((1,), ()),
    ),
    "beside a static one": (
        {"donate_argnames": "state", "static_argnames": ("rate", "steps")},
        lambda f, s: f(0.1, steps=3, state=s),
        ((), ("state",)),
    ),
    "none": ({}, lambda f, s: f(0.1, state=s), ((), ())),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("donated", DONATED)
def test_arguments_are_donated_as_by_jax(donated, own):
    marks, call, expected = DONATED[donated]
    fn, options = (jax.jit(update, **marks), UNTILED) if own else (update, UNTILED | marks)
    plan = call(functools.partial(pt.plan, fn, **options), np.ones((16, 8), np.float32))
    assert (plan.donate_argnums, plan.donate_argnames) == expected
    assert bool(plan.program.aliases) == (donated != "none")
    for ours in (jax.jit(update, **marks), plan.jit(), pt.jit(fn, **options)):
        state = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(MESH, P()))
        call(ours, state)
        assert state.is_deleted() == (donated != "none")


def test_donation_by_name_may_be_turned_off_and_is_saved(tmp_path):
    state = jnp.ones((16, 8))
    p = pt.plan(update, 0.1, state=state, donate_argnames="state", **UNTILED)
    p.save(tmp_path / "plan.json")
    loaded = pt.load(tmp_path / "plan.json", update, 0.1, state=state)
    assert loaded.donate_argnames == ("state",)
    for made, keeps in ((p.jit(donate_argnames=()), True), (loaded.jit(), False)):
        placed = jax.device_put(state, NamedSharding(MESH, P()))
        made(0.1, state=placed)
        assert placed.is_deleted() != keeps
