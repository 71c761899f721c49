"""Manual computations: one operation that is sharded as it says, its collectives as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import partita as pt
from checks import numbers, planner, runs_as_the_original
from partita.text import relative

HERE = relative(__file__)

P = PartitionSpec
MESH = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def mapped(in_specs, out_specs, **options):
    options = {"mesh": MESH} | options
    return lambda f: jax.shard_map(f, in_specs=in_specs, out_specs=out_specs, **options)


def checked(fn, *args, tactics=()):
    return runs_as_the_original(planner(mesh="x=4,y=2")(fn, *args, tactics=tactics), *args)


@mapped((P("x", "y"), P("y")), P("x"))
def product(a, b):
    return jax.lax.psum(a @ b, "y")


def test_it_is_kept_and_its_collectives_are_those_of_the_plan():
    plan = checked(lambda a, b: jnp.tanh(product(2 * a, b)) + 1, numbers(16, 8), numbers(8, 4))
    assert plan.in_shardings == (P("x", "y"), P("y"))
    assert plan.out_shardings == P("x")
    (inside,) = plan.collectives
    assert (inside.kind, inside.axes, inside.bytes, inside.count) == ("all_reduce", ("y",), 64, 1)
    assert inside.source.startswith(HERE)
    assert "as (x, y), (y, -) -> (x, -)" in str(plan)
    assert plan.history[-1].collectives == {"all_reduce": 1}
    assert plan.estimate.traffic["all_reduce", ("y",)].bytes == 64
    assert plan.estimate.exposed_time > 0


def test_operands_are_moved_to_where_it_needs_them():
    hands = [pt.ManualPartition({"a": 1}, "x")]
    plan = checked(lambda a, b: product(2 * a, b), numbers(16, 8), numbers(8, 4), tactics=hands)
    assert plan.in_shardings[0] == P(None, "x")
    assert "all_to_all" in [c.kind for c in plan.collectives]
    later = [pt.AutomaticPartition(budget=30)]
    plan = checked(lambda a, b: product(2 * a, b), numbers(16, 8), numbers(8, 4), tactics=later)
    assert plan.out_shardings == P("x")


def test_every_kind_of_collective():
    out = P("x"), P("x"), P("x"), P("x"), P("x"), P("x"), P()

    @mapped((P("x"), P(("x", "y"))), out, check_vma=False)
    def every(a, b):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        return (
            jax.lax.ppermute(a, "x", ring),
            jax.lax.psum(a, "x") + jax.lax.pmax(a, "x"),
            jax.lax.psum_scatter(jnp.tile(a, (4, 1)), "x", tiled=True),
            jax.lax.all_to_all(a, "x", 1, 0, tiled=True),
            jax.lax.all_gather(b, "y", tiled=True),
            a + jax.lax.axis_index("x"),
            jax.lax.psum(b.sum(), ("x", "y")),
        )

    plan = checked(every, numbers(16, 8), numbers(16, 8))
    assert {c.kind for c in plan.collectives} == {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_permute",
        "reduce_scatter",
    }


def test_in_a_loop_and_with_a_loop_inside():
    @mapped(P("x"), P("x"))
    def rotate(a):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        turn = lambda _, a: jax.lax.ppermute(jnp.sin(a), "x", ring)  # noqa: E731
        return jax.lax.fori_loop(0, 3, turn, a)

    def fn(a):
        return jax.lax.scan(lambda a, _: (rotate(a) + 1, None), a, None, length=2)[0]

    plan = checked(fn, numbers(16, 8))
    (permute,) = plan.collectives
    assert permute.count == 6


def test_gradients_of_them_and_beside_other_tactics():
    def loss(w, a, b):
        return jnp.sum(jnp.tanh(product(a @ w, b)))

    plan = checked(jax.grad(loss), numbers(8, 8), numbers(16, 8), numbers(8, 4))
    assert plan.in_shardings[2] == P("y")


def test_those_that_do_different_things_are_priced_by_what_they_do():
    once = mapped(P("x"), P("x"))(lambda a: a @ a.T @ a)
    often = mapped(P("x"), P("x"))(lambda a: jax.lax.fori_loop(0, 9, lambda _, a: a @ a.T @ a, a))

    def time(fn):
        return pt.plan(
            fn, numbers(1024, 256), mesh="x=4,y=2", hardware="tpu_v5e", tactics=[]
        ).estimate.compute_time

    separate = time(once), time(often)
    assert separate[1] > 5 * separate[0]
    both = time(lambda a: once(often(a)))
    assert both == pytest.approx(sum(separate), rel=0.05)


def test_arguments_closed_over_and_several_of_them():
    c = jnp.arange(8.0)
    scale = mapped(P("x"), P("x"))(lambda a: a * c)
    checked(lambda a: scale(scale(a)) + jnp.sum(scale(a)), numbers(16, 8))


# ----------------------------------------------------------------------------------------- refused


def refused(fn, *args, mesh="x=4,y=2"):
    with pytest.raises(pt.PartitaError) as caught:
        pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=[])
    return str(caught.value)


def test_one_that_is_manual_over_some_axes_only():
    fn = mapped(P("x"), P("x"), axis_names={"x"})(lambda a: 2 * a)
    message = refused(fn, numbers(16, 8))
    assert "the shard_map at" in message
    assert "is manual over x, but not over y; make it manual over all axes of the mesh" in message


def test_one_over_another_mesh():
    for mesh in ("x=8", "y=2,x=4", "x=2,y=4"):
        message = refused(product, numbers(16, 8), numbers(8, 4), mesh=mesh)
        assert f"is over mesh x=4,y=2, but the plan is for mesh {mesh}" in message


def test_groups_of_devices_that_are_none_of_axes():
    fn = mapped(P("x"), P("x"), check_vma=False)(
        lambda a: jax.lax.psum(a, "x", axis_index_groups=[[0, 1], [2, 3]])
    )
    assert "leave axis_index_groups out" in refused(fn, numbers(16, 8))


def test_a_callback_inside():
    def fn(a):
        shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
        return jax.pure_callback(np.sin, shape, a)

    assert "call back to the host" in refused(mapped(P("x"), P("x"))(fn), numbers(16, 8))
