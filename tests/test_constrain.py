"""`partita.constrain`: the identity, but for partita."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import partita as pt
from checks import numbers, planner, runs_as_the_original
from partita.program.op_traits import CONSTRAINT

P, OPEN = PartitionSpec, PartitionSpec.UNCONSTRAINED
MESH = "x=4,y=2"


def checked(fn, *args, tactics=()):
    return runs_as_the_original(planner(mesh=MESH)(fn, *args, tactics=tactics), *args)


def given(plan):
    """What the constraints of a plan's program say."""
    return [op.given.axes for op in plan.program.operations if op.kind == CONSTRAINT]


def test_elsewhere_it_is_the_identity():
    x = jnp.asarray(numbers(8, 4))
    fn = lambda x: pt.constrain(x, P("nowhere"))  # noqa: E731
    assert fn(x) is x
    np.testing.assert_array_equal(jax.jit(fn)(x), x)
    text = str(jax.jit(fn).lower(x).compiler_ir("stablehlo"))
    assert "custom_call" not in text and "sharding" not in text
    np.testing.assert_array_equal(jax.grad(lambda x: fn(x).sum())(x), jnp.ones_like(x))
    assert jax.eval_shape(jax.vmap(fn), x).shape == (8, 4)


def test_a_plan_keeps_it():
    plan = checked(lambda x: jnp.tanh(pt.constrain(2 * x, P("x", None))), numbers(16, 8))
    assert plan.in_shardings == (P("x"),)
    assert plan.out_shardings == P("x")
    later = [pt.ManualPartition({"x": 1}, "y"), pt.AutomaticPartition(budget=20)]
    plan = checked(lambda x: pt.constrain(2 * x, P("x", None)), numbers(16, 8), tactics=later)
    assert plan.out_shardings == P("x")


def test_what_is_open_is_left_to_tactics():
    plan = checked(
        lambda x: pt.constrain(2 * x, P("x", OPEN)),
        numbers(16, 8),
        tactics=[pt.ManualPartition({"x": 1}, "y")],
    )
    assert plan.out_shardings == P("x", "y")


def test_the_cotangent_is_constrained_alike():
    def fn(x):
        return jax.grad(lambda x: jnp.sum(jnp.sin(pt.constrain(2 * x, P(None, "x")))))(x)

    plan = checked(fn, numbers(16, 8))
    assert given(plan) == [((), ("x",)), ((), ("x",))]
    assert plan.out_shardings == P(None, "x")


@pytest.mark.parametrize(("dim", "axes"), [(0, ((), ("y",))), (1, (("y",), ()))])
def test_a_dimension_that_vmap_adds_is_open(dim, axes):
    fn = jax.vmap(lambda row: pt.constrain(2 * row, P("y")), in_axes=dim, out_axes=dim)
    plan = checked(fn, numbers(8, 8), tactics=[pt.ManualPartition({"*": dim}, "x")])
    assert given(plan) == [axes]
    assert plan.out_shardings == (P("x", "y") if dim == 0 else P("y", "x"))


@pytest.mark.parametrize(("dim", "axes"), [(0, P("x", "y")), (1, P("y", "x"))])
def test_a_dimension_that_vmap_adds_is_split_along_its_spmd_axis_name(dim, axes):
    def row(row, scale):
        return jax.grad(lambda row: jnp.sum(jnp.sin(pt.constrain(scale * row, P("y")))))(row)

    fn = jax.vmap(row, in_axes=(dim, None), out_axes=dim, spmd_axis_name="x")
    plan = checked(fn, numbers(8, 8), numbers(1))
    assert len(given(plan)) == 2  # that of the gradient, too
    assert plan.out_shardings == axes


def test_an_axis_cannot_be_that_of_vmap_and_of_the_constraint():
    fn = jax.vmap(lambda row: pt.constrain(row, P("y")), spmd_axis_name="y")
    with pytest.raises(pt.TraceError, match=r"SpecError: .* under jax\.vmap\(spmd_axis_name='y'\)"):
        planner(mesh=MESH)(fn, numbers(8, 8))


def test_in_loops_under_remat_and_on_random_keys():
    def fn(x, keys):
        step = jax.checkpoint(lambda h, _: (pt.constrain(jnp.sin(h), P("x")), None))
        keys = pt.constrain(keys, P("x"))
        loss = lambda x: jax.lax.scan(step, x, None, length=3)[0].sum()  # noqa: E731
        return jax.value_and_grad(loss)(x), jax.vmap(jax.random.normal)(keys)

    plan = checked(fn, numbers(16), jax.random.split(jax.random.key(0), 8))
    assert plan.in_shardings == (P("x"), P("x"))


def test_an_axis_that_the_mesh_lacks():
    with pytest.raises(pt.AxisError, match=r"constraint at .*test_constrain.py:\d+ .*'z'"):
        pt.plan(lambda x: pt.constrain(x, P("z")), numbers(8), mesh=MESH, hardware="cpu")
    with pytest.raises(pt.AxisError, match="did you mean 'data'"):
        pt.plan(lambda x: pt.constrain(x, P("dat")), numbers(8), mesh="data=8", hardware="cpu")


def test_a_size_that_does_not_divide():
    with pytest.raises(pt.UnsupportedError, match=r"dimension 0 of 6 does not divide by x=4 x y=2"):
        pt.plan(
            lambda x: pt.constrain(x, P(("x", "y"))),
            numbers(6),
            mesh=MESH,
            hardware="cpu",
            tactics=[],
        )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (P("x", "y"), "the value to constrain has 1 dimension, but .* 2 entries"),
        (P(("x", "x")), "names the axis 'x' twice"),
        ("x", "expected a PartitionSpec"),
        (P(3), "has the entry 3"),
    ],
)
def test_specs_that_make_no_sense(spec, message):
    with pytest.raises(pt.SpecError, match=message):
        pt.constrain(jnp.ones(4), spec)
