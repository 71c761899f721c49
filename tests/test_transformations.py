"""Planned functions are transformed, and are parts of other functions, as `jax.jit`'s are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import assert_same, numbers

ROWS = [pt.ManualPartition({"x": 0}, axis="data")]
OPTIONS = {"mesh": "data=4", "hardware": "cpu", "tactics": ROWS}
X, W = numbers(16, 8), numbers(8, 8, seed=1)


def layer(x, w):
    return jnp.tanh(x @ w)


@functools.cache
def planned(how):
    return pt.plan(layer, X, W, **OPTIONS).jit() if how == "plan.jit" else pt.jit(layer, **OPTIONS)


def total(fn):
    return lambda w: jnp.sum(fn(X, w) ** 2)


def in_a_scan(fn):
    def body(w, _):
        return w + 0.1 * fn(X, w)[:8], jnp.mean(fn(X, w))

    return lambda w: jax.lax.scan(body, w, None, length=3)


def in_a_custom_vjp(fn):
    @jax.custom_vjp
    def ours(w):
        return fn(X, w)

    ours.defvjp(
        lambda w: (fn(X, w), w), lambda w, g: (3 * jax.vjp(lambda w: fn(X, w), w)[1](g)[0],)
    )
    return jax.grad(lambda w: jnp.sum(ours(w)))


def in_a_while_loop(fn):
    return lambda w: jax.lax.fori_loop(0, 3, lambda _, w: fn(X, w)[:8], w)


def in_a_branch(fn):
    return lambda w: jax.lax.cond(w[0, 0] > 100, lambda w: fn(X, w), lambda w: -fn(X, w), w)


WAYS = {
    "grad": lambda fn: jax.grad(total(fn)),
    "value and grad, compiled": lambda fn: jax.jit(jax.value_and_grad(total(fn))),
    "jvp": lambda fn: lambda w: jax.jvp(functools.partial(fn, X), (w,), (jnp.ones_like(w),)),
    "vjp": lambda fn: lambda w: jax.vjp(fn, X, w)[1](jnp.ones((16, 8))),
    "linearize": lambda fn: lambda w: jax.linearize(functools.partial(fn, X), w)[1](w),
    "hessian": lambda fn: lambda w: jax.hessian(lambda v: total(fn)(v * w))(jnp.float32(1.0)),
    "jacfwd": lambda fn: jax.jacfwd(lambda w: fn(X, w)[0]),
    "jacrev": lambda fn: jax.jacrev(lambda w: fn(X, w)[0]),
    "vmap": lambda fn: lambda w: jax.vmap(fn, (None, 0))(X, jnp.stack([w, 2 * w])),
    "vmap, last": lambda fn: lambda w: jax.vmap(fn, (None, 2), 1)(X, jnp.stack([w, 2 * w], 2)),
    "vmap of grad": lambda fn: lambda w: jax.vmap(jax.grad(total(fn)))(jnp.stack([w, 2 * w])),
    "grad of vmap": lambda fn: jax.grad(
        lambda w: jnp.sum(jax.vmap(fn, (None, 0))(X, jnp.stack([w, 2 * w])))
    ),
    "jit": lambda fn: jax.jit(lambda w: 2 * fn(X, w)),
    "checkpoint": lambda fn: jax.grad(total(jax.checkpoint(fn))),
    "scan": in_a_scan,
    "grad of scan": lambda fn: jax.grad(lambda w: jnp.sum(in_a_scan(fn)(w)[0])),
    "loop": in_a_while_loop,
    "branch": in_a_branch,
    "custom_vjp": in_a_custom_vjp,
    "twice": lambda fn: lambda w: fn(fn(X, w), w),
}


@pytest.mark.parametrize("how", ["plan.jit", "pt.jit"])
@pytest.mark.parametrize("way", WAYS)
def test_a_planned_function_is_transformed_as_the_original(way, how):
    assert_same(WAYS[way](planned(how))(W), WAYS[way](layer)(W), 1e-4)


@pytest.mark.parametrize("how", ["plan.jit", "pt.jit"])
def test_called_inside_of_jit_it_is_the_planned_program(how):
    """The collectives are the planned ones, and the constraints that lead to it move nothing."""
    sums = {"plan.jit": lambda f, *a: pt.plan(f, *a, **OPTIONS).jit(), "pt.jit": None}
    fn = lambda x, w: jnp.sum(x @ w, axis=0)  # noqa: E731
    made = sums[how](fn, X, W) if how == "plan.jit" else pt.jit(fn, **OPTIONS)
    text = jax.jit(lambda x, w: made(x, w) + 1).lower(X, W).as_text()
    assert text.count("sdy.manual_computation") == 1
    assert text.count("stablehlo.all_reduce") == 1


@pytest.mark.parametrize("how", ["plan.jit", "pt.jit"])
def test_gradients_have_the_planned_shardings(how):
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(planned(how)(x, W))))(X)
    assert gradient.sharding.spec == P("data")
    compiled = jax.jit(jax.grad(lambda w: total(planned(how))(w))).lower(W).compile().as_text()
    assert "f32[4,8]" in compiled  # a quarter of the rows


@pytest.mark.parametrize("how", ["plan.jit", "pt.jit"])
def test_it_is_lowered_traced_and_evaluated_for_shapes(how):
    fn = planned(how)
    x, w = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W))
    assert_same(fn.lower(x, w).compile()(X, W), layer(X, W))
    assert fn.trace(x, w).out_info.shape == (16, 8)
    assert fn.eval_shape(x, w).sharding.spec == P("data")
    assert jax.eval_shape(fn, x, w).shape == (16, 8)
    assert fn.__name__ == "layer" and fn.__wrapped__ is layer


def test_values_that_are_no_numbers_have_no_gradient():
    def draw(x, key, count):
        return x * jax.random.uniform(key, x.shape), count + 1, key

    def loss(fn):
        return lambda x: jnp.sum(fn(x, jax.random.key(0), 3)[0])

    fn = pt.jit(draw, **OPTIONS)
    assert_same(jax.grad(loss(fn))(X), jax.grad(loss(draw))(X))
    ours, theirs = (
        jax.vmap(f, (0, 0, None))(np.stack([X, X]), jax.random.split(jax.random.key(0)), 3)
        for f in (fn, draw)
    )
    assert_same(ours, theirs)


def test_keywords_static_arguments_and_closed_over_constants_are_transformed():
    def fn(x, power, *, scale):
        return scale * (x @ W) ** power

    ours = pt.jit(fn, static_argnums=1, hoist_constants="64B", **OPTIONS)
    for transform in (jax.grad, jax.jacfwd):
        made = transform(lambda s, f=ours: jnp.sum(f(X, 2, scale=s)))(2.0)
        assert_same(made, transform(lambda s: jnp.sum(fn(X, 2, scale=s)))(2.0))


def test_without_compilation_it_is_the_original():
    with jax.disable_jit():
        assert_same(planned("plan.jit")(X, W), layer(X, W))


def test_a_program_of_a_file_runs_inside_but_is_not_differentiated(tmp_path):
    (tmp_path / "layer.mlir").write_text(jax.jit(layer).lower(X, W).as_text())
    fn = pt.plan(str(tmp_path / "layer.mlir"), mesh="data=4", hardware="cpu", tactics=[]).jit()
    assert_same(jax.jit(lambda w: 2 * fn(X, w))(W), 2 * layer(X, W))
    for transform in (
        jax.grad(lambda w: jnp.sum(fn(X, w))),
        lambda w: jax.vmap(fn)(X[None], w[None]),
    ):
        with pytest.raises(pt.UnsupportedError, match="layer is read from a file, and cannot be"):
            transform(W)


def test_an_array_that_another_trace_holds_is_to_be_an_argument():
    def inner(w):
        return jnp.sum(pt.jit(lambda x: x @ w, **OPTIONS)(X))

    for outer in (jax.grad(inner), jax.jit(inner)):
        with pytest.raises(pt.TraceError, match="reads an array from outside that another"):
            outer(W)


# ---------------------------------------------------------------- as a part of a function to plan


@pytest.mark.parametrize("how", ["plan.jit", "pt.jit"])
def test_a_planned_function_is_planned_as_a_part_with_its_shardings(how):
    def outer(x, w):
        return jnp.sum(planned(how)(x, w), axis=0)

    p = pt.plan(outer, X, W, mesh="data=4", hardware="cpu", tactics=[])
    assert p.in_shardings == (P("data"), P())
    assert [c.kind for c in p.collectives] == ["all_reduce"]
    assert_same(p.jit()(X, W), jnp.sum(layer(X, W), axis=0))
    assert_same(
        pt.jit(jax.grad(lambda w: total(planned(how))(w)), **{**OPTIONS, "tactics": []})(W),
        jax.grad(total(layer))(W),
        1e-4,
    )


@pytest.mark.parametrize("how", ["plan.jit", "pt.jit"])
def test_a_planned_function_is_planned_again(how):
    p = pt.plan(planned(how), X, W, mesh="data=4", hardware="cpu", tactics=[])
    assert p.in_shardings == (P("data"), P())
    assert_same(p.jit()(X, W), layer(X, W))


def test_over_another_mesh_its_shardings_are_refused():
    with pytest.raises(pt.MeshError, match=r"over mesh data=4, but the plan is for mesh model=2"):
        pt.plan(lambda w: planned("plan.jit")(X, w), W, mesh="model=2", hardware="cpu", tactics=[])


def test_it_runs_inside_on_the_devices_of_its_mesh():
    mesh = Mesh(np.array(jax.devices()[4:]), ("data",))
    fn = pt.jit(layer, **{**OPTIONS, "mesh": mesh})
    made = jax.jit(lambda w: fn(X, w) + 1)(W)
    assert made.devices() == set(jax.devices()[4:])
    assert jax.grad(total(fn))(W).devices() == set(jax.devices()[4:])
