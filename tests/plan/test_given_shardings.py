"""Shardings that a user's own `jax.jit`, and the arguments, come with: they are kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import partita as pt
from checks import numbers, planner

AUTO = (AxisType.Auto,) * 2
CONCRETE = jax.make_mesh((4, 2), ("x", "y"), axis_types=AUTO)
ABSTRACT = AbstractMesh((4, 2), ("x", "y"), axis_types=AUTO)
P = PartitionSpec


plan = planner(mesh="x=4,y=2")


def step(params, x):
    return {"y": x @ params["w"] + params["b"]}


def arguments():
    return {"w": numbers(8, 16), "b": numbers(16)}, numbers(32, 8)


@pytest.mark.parametrize("mesh", [CONCRETE, ABSTRACT], ids=["concrete", "abstract"])
def test_shardings_of_the_users_own_jit_are_kept(mesh):
    named = lambda *spec: NamedSharding(mesh, P(*spec))  # noqa: E731
    jitted = jax.jit(
        step,
        in_shardings=({"w": named(None, "y"), "b": None}, named("x")),
        out_shardings=named(None, "y"),
    )
    later = [pt.ManualPartition({"x": 1}, axis="y"), pt.AutomaticPartition(budget=50)]
    for tactics in ([], later):
        p = plan(jitted, *arguments(), tactics=tactics)
        assert p.in_shardings == ({"w": P(None, "y"), "b": P("y")}, P("x"))
        assert p.out_shardings == {"y": P(None, "y")}
        ours, theirs = p.jit()(*p.shard(*arguments())), step(*arguments())
        np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-5, atol=1e-5)


def test_shardings_of_a_jit_that_is_called_inside_are_constraints():
    inner = jax.jit(jnp.tanh, in_shardings=NamedSharding(CONCRETE, P("x")))
    p = plan(lambda x: inner(2 * x), numbers(32, 8), tactics=[pt.ManualPartition({"x": 1}, "y")])
    assert p.in_shardings == (P("x", "y"),)
    assert [c.kind for c in p.collectives] == ["all_gather"]


def test_arguments_that_are_sharded_are_kept_so():
    (params, x), named = arguments(), NamedSharding(CONCRETE, P("x"))
    struct = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=named)
    over_abstract = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(ABSTRACT, P("x")))
    for given in (struct, over_abstract, jax.device_put(x, named)):
        p = plan(step, params, given, tactics=[pt.ManualPartition({"x": [1]}, axis="y")])
        assert p.in_shardings == ({"w": P(), "b": P()}, P("x"))
        assert "keeps x as (x, -)" in str(p)
        assert "pinned along y" in str(p.history[1].refused[0])


def test_by_keyword_and_on_random_keys():
    key = jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(CONCRETE, P("x")))
    draw = lambda *, key: jax.vmap(lambda k: jax.random.normal(k, (4,)))(key)  # noqa: E731
    p = plan(draw, key=key)
    assert p.out_shardings == P("x")
    np.testing.assert_allclose(p.jit()(key=key), draw(key=key), rtol=1e-5)


def test_arrays_on_one_device_or_over_other_axes_say_nothing():
    x = numbers(32, 8)
    other = jax.make_mesh((8,), ("batch",), axis_types=AUTO[:1])
    one = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
    for array in (
        jnp.asarray(x),
        jax.device_put(x, NamedSharding(other, P("batch"))),
        jax.device_put(x, NamedSharding(one, P("x"))),
    ):
        p = plan(jnp.tanh, array, tactics=[pt.ManualPartition({"*": 1}, axis="y")])
        assert p.in_shardings == (P(None, "y"),)


def test_what_was_said_over_another_mesh_is_refused():
    x, named = numbers(32, 8), NamedSharding(CONCRETE, P("x"))
    struct = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=named)
    for fn, arg in ((jnp.tanh, struct), (jax.jit(jnp.tanh, in_shardings=named), x)):
        with pytest.raises(
            pt.MeshError, match=r"comes with the sharding \(x, -\) over mesh x=4,y=2"
        ):
            plan(fn, arg, mesh="data=8")


# ---------------------------------------------------------------- specs without a mesh of their own


def bare(a):
    return jnp.tanh(constrained(2 * a, P(None, "y")))


def test_a_bare_spec_means_the_mesh_that_is_set():
    with jax.set_mesh(CONCRETE):
        p = plan(bare, numbers(16, 8))
    assert p.out_shardings == P(None, "y")


def test_a_bare_spec_means_the_mesh_of_the_plan_if_none_is_set():
    p = plan(bare, numbers(16, 8))
    assert p.out_shardings == P(None, "y")
    np.testing.assert_allclose(p.jit()(numbers(16, 8)), np.tanh(2 * numbers(16, 8)), rtol=1e-5)


def test_a_bare_spec_over_an_axis_that_the_mesh_lacks_is_refused():
    with pytest.raises(pt.TraceError, match="'y'"):
        plan(bare, numbers(16, 8), mesh="data=8")


def test_a_function_without_specs_is_traced_without_a_mesh():
    seen = []

    def fn(a):
        seen.append(jax.sharding.get_abstract_mesh().empty)
        return 2 * a

    plan(fn, numbers(16, 8))
    assert seen == [True]


def test_a_jitted_function_of_ours_takes_arguments_as_they_are_sharded():
    @pt.jit(mesh=CONCRETE, hardware="cpu", tactics=[pt.ManualPartition({"x": 0}, axis="x")])
    def double(x):
        return 2 * x

    x = numbers(16, 8)
    columns = jax.device_put(x, NamedSharding(CONCRETE, P(None, "y")))
    for given in (x, double(x), columns, double(columns)):
        np.testing.assert_allclose(double(given) / 2, given)
    # What comes out as the plan has it is taken by the same plan.
    assert [p.in_shardings for p in double.plans.values()] == [(P("x"),), (P(None, "y"),)]
