"""`with_sharding_constraint` in a program: a fact that is kept, wherever it stands.

Meshes have 8 devices; every program is run partitioned and compared with the original, and its
collectives as predicted with those that are compiled.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import partita as pt
from checks import numbers, planner, runs_as_the_original
from partita.program.op_traits import CONSTRAINT

MESH = "x=4,y=2"
OPEN = PartitionSpec.UNCONSTRAINED


@functools.cache
def mesh(*sizes, names=("x", "y")):
    sizes = sizes or (4, 2)
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def named(*spec):
    return NamedSharding(mesh(), PartitionSpec(*spec))


def checked(fn, *args, **options):
    """A plan that has been run, which leaves no constraint to the compiler."""
    plan = runs_as_the_original(planner(mesh=MESH)(fn, *args, **options), *args)
    assert "sharding_constraint" not in str(plan.exported.mlir_module())
    return plan


def kinds(plan):
    return [(c.kind, c.axes) for c in plan.collectives]


def by_hand(**dims):
    """`by_hand(x=(0, "a"))` shards dimension 0 of `a` along x."""
    return [pt.ManualPartition({name: dim}, axis=axis) for axis, (dim, name) in dims.items()]


# ------------------------------------------------------------------------- moved where it says


def doubled(a):
    return constrained(2 * a, named(None, ("x", "y"), None))


@pytest.mark.parametrize("given", ["tactics", "argument"])
def test_axes_that_move_are_exchanged_and_nothing_is_ever_whole(given):
    a = numbers(32, 64, 16)
    if given == "tactics":
        plan = checked(doubled, a, tactics=by_hand(y=(0, "a"), x=(2, "a")))
    else:
        plan = checked(jax.jit(doubled, in_shardings=named("y", None, "x")), a)
    assert plan.in_shardings == (PartitionSpec("y", None, "x"),)
    assert plan.out_shardings == PartitionSpec(None, ("x", "y"))
    assert kinds(plan) == [("all_to_all", ("x",)), ("all_to_all", ("y",))]
    assert {c.bytes for c in plan.collectives} == {a.nbytes // 8}


def test_axes_propagate_backward_and_forward_from_a_constraint():
    def fn(a, w):
        return jnp.tanh(constrained(a + 1, named("x", None))) @ w

    plan = checked(fn, numbers(16, 8), numbers(8, 8))
    assert plan.in_shardings == (PartitionSpec("x"), PartitionSpec())
    assert plan.out_shardings == PartitionSpec("x")
    assert not plan.collectives
    assert "keeps sharding_constraint at" in str(plan)


def test_a_whole_dimension_is_gathered_there():
    plan = checked(
        lambda a: jnp.tanh(constrained(2 * a, named(None, None))) + 1,
        numbers(16, 8),
        tactics=by_hand(x=(0, "a")),
    )
    assert kinds(plan) == [("all_gather", ("x",))]
    assert plan.out_shardings == PartitionSpec()


def test_partial_sums_are_reduced_at_the_constraint():
    def fn(a, w):
        return constrained(a @ w, named("y", None)) * 2

    plan = checked(fn, numbers(16, 8), numbers(8, 8), tactics=by_hand(x=(1, "a")))
    assert kinds(plan) == [("all_reduce", ("x",))]
    scattered = checked(
        lambda a, w: constrained(a @ w, named("x", None)) * 2,
        numbers(16, 8),
        numbers(8, 8),
        tactics=by_hand(x=(1, "a")),
    )
    assert kinds(scattered) == [("reduce_scatter", ("x",))]


# ---------------------------------------------------------------------- what tactics may still do


def test_later_tactics_do_not_split_what_is_closed():
    def fn(a):
        return jnp.tanh(constrained(2 * a, named("x", None)))

    for tactics in (
        by_hand(y=(1, "a")),
        by_hand(y=(1, "result")),
        [pt.AutomaticPartition(budget=50)],
        [pt.AutomaticPartition(axes=["y"], budget=50), *by_hand(y=(0, "a"))],
    ):
        plan = checked(fn, numbers(16, 8), tactics=tactics)
        (op,) = [op for op in plan.program.operations if op.kind == CONSTRAINT]
        assert plan.assignment.ops[op.index] == ((0,), ())
        assert plan.assignment.values[op.results[0]] == ((0,), ())


def test_a_tactic_that_names_the_value_of_a_constraint_is_told_so():
    plan = checked(
        lambda a: constrained(2 * a, named("x", None)),
        numbers(16, 8),
        tactics=by_hand(y=(1, "result")),
    )
    assert "sharding_constraint at" in str(plan.history[1].refused[0])
    assert "says how it is split" in str(plan.history[1].refused[0])


def test_dimensions_said_open_are_left_to_tactics():
    def fn(a):
        return jnp.tanh(constrained(2 * a, named("x", OPEN)))

    plan = checked(fn, numbers(16, 8), tactics=by_hand(y=(1, "a")))
    assert plan.in_shardings == (PartitionSpec("x", "y"),)
    assert plan.out_shardings == PartitionSpec("x", "y")
    assert not plan.collectives


def test_arguments_go_before_constraints_and_constraints_before_results():
    def fn(a):
        b = jnp.tanh(constrained(2 * a, named(None, "x")))
        return jnp.sin(constrained(jnp.exp(b), named("x", None)))

    jitted = jax.jit(fn, in_shardings=named("y", None), out_shardings=named(None, "x"))
    plan = checked(jitted, numbers(16, 8))
    assert plan.in_shardings == (PartitionSpec("y"),)
    assert plan.out_shardings == PartitionSpec(None, "x")
    tanh, sin = (
        next(op for op in plan.program.operations if op.short == kind) for kind in ("tanh", "sine")
    )
    assert plan.assignment.ops[tanh.index] == ((), (0,))
    assert plan.assignment.ops[sin.index] == ((0,), ())


def test_ready_made_tactics_come_before_constraints_as_manual_ones_do():
    def fn(x):
        return jnp.tanh(constrained(2 * x, named(None, "x")))

    hands = [pt.ManualPartition({"x": 0}, axis="x")]
    manual, ready_made = (
        checked(fn, numbers(16, 8), tactics=tactics) for tactics in (hands, [pt.DataParallel("x")])
    )
    assert manual.in_shardings == (PartitionSpec("x"),)
    assert ready_made.assignment == manual.assignment


# --------------------------------------------------------------------------- where they may stand


def test_in_a_loop_a_branch_and_a_gradient():
    def layer(h, w):
        return constrained(jnp.tanh(h @ w), named("x", None)), None

    def loss(W, h, flag):
        h = jax.lax.scan(layer, h, W)[0]
        return jnp.sum(
            jax.lax.cond(flag > 0, lambda h: constrained(h, named(None, "y")), jnp.sin, h)
        )

    def fn(W, h, flag):
        return jax.value_and_grad(loss)(W, h, flag)

    plan = checked(fn, numbers(3, 8, 8), numbers(16, 8), np.int32(1))
    assert plan.in_shardings[1] == PartitionSpec("x", "y")
    constraints = [op for op in plan.program.operations if op.kind == CONSTRAINT]
    assert max(op.times for op in constraints) == 3


def test_under_vmap_remat_and_on_keys_and_scalars():
    def fn(a, key):
        row = jax.vmap(lambda r: constrained(2 * r, named("y")))(a)
        row = jax.checkpoint(lambda r: constrained(jnp.sin(r), named("x", "y")))(row)
        noise = jax.random.normal(key, (16, 8))
        return constrained(jnp.sum(row + noise), named())

    checked(fn, numbers(16, 8), jax.random.key(0), tactics=by_hand(x=(0, "a")))


def test_of_an_argument_a_constant_and_a_constraint():
    def fn(a):
        b = constrained(constrained(a, named("x", None)), named(None, "y"))
        zeros = constrained(jnp.zeros((16, 8)), named("x", None))
        return b + 1, zeros, constrained(a, named(None, None))

    plan = checked(fn, numbers(16, 8))
    assert plan.out_shardings == (PartitionSpec(None, "y"), PartitionSpec("x"), PartitionSpec())


def test_in_a_program_read_from_a_file_that_runs_on_one_device(tmp_path):
    path = tmp_path / "program.mlir"
    a = numbers(32, 64, 16)
    path.write_text(str(jax.jit(doubled).lower(a).compiler_ir("stablehlo")), "utf-8")
    plan = pt.plan(path, mesh=MESH, hardware="cpu", tactics=[])
    assert plan.out_shardings == PartitionSpec(None, ("x", "y"))
    np.testing.assert_allclose(plan.jit()(a), 2 * a)
    np.testing.assert_allclose(pt.read(path)(a), 2 * a)


def test_in_the_annotated_form(tmp_path):
    plan = pt.plan(
        doubled, numbers(32, 64, 16), mesh=MESH, hardware="cpu", tactics=by_hand(y=(0, "a"))
    )
    plan.export(tmp_path / "annotated.mlir", "annotated")
    text = (tmp_path / "annotated.mlir").read_text("utf-8")
    (said,) = re.findall(r"stablehlo.reshape .*sharding_per_value<\[(.*?)>\]>", text)
    assert said == '<@mesh, [{}, {"x", "y"}, {}]'


# ------------------------------------------------------------------------------------------ price


def test_a_constraint_costs_nothing_itself():
    """The step costs what it costs without: same layouts, no kernel more."""

    def price(constrain, fn, *args):
        given = jax.jit(
            lambda *args: fn(constrain, *args),
            in_shardings=named("x", None),
            out_shardings=named("x", None),
        )
        return pt.plan(given, *args, mesh=MESH, hardware="tpu_v5e", tactics=[]).estimate

    same = lambda v: constrained(v, named("x", None))  # noqa: E731
    cases = (
        lambda c, a: c(a @ jnp.ones((512, 512))),
        lambda c, a: jnp.sin(c(a @ jnp.ones((512, 512)))) @ jnp.ones((512, 512)),
        lambda c, a: jnp.sin(c(jnp.cos(a))) @ jnp.ones((512, 512)),
        lambda c, a: c(jnp.cos(a)) @ jnp.ones((512, 512)),
    )
    for fn in cases:
        with_, without = (price(c, fn, numbers(512, 512)) for c in (same, lambda v: v))
        assert with_.step_time == pytest.approx(without.step_time)
        assert with_.peak_memory == without.peak_memory


# ----------------------------------------------------------------------------------------- errors


def refused(fn, *args, mesh=MESH):
    with pytest.raises(pt.PartitaError) as caught:
        pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=[])
    return caught.value


def test_another_mesh_is_refused():
    error = refused(doubled, numbers(32, 64, 16), mesh="x=2,y=4")
    assert isinstance(error, pt.MeshError)
    assert "sharding_constraint at" in str(error)
    assert "comes with the sharding (-, x+y, -) over mesh x=4,y=2, but the plan is for mesh" in str(
        error
    )


def test_a_size_that_does_not_divide_is_refused(tmp_path):
    text = """module { sdy.mesh @m = <["x"=4, "y"=2]>
    func.func @main(%a: tensor<6x8xf32>) -> tensor<6x8xf32> {
      %0 = sdy.sharding_constraint %a <@m, [{"x"}, {}]> : tensor<6x8xf32>
      return %0 : tensor<6x8xf32> } }"""
    path = tmp_path / "odd.mlir"
    path.write_text(text, "utf-8")
    error = refused(path)
    assert "odd.mlir:3 comes with the sharding (x, -)" in str(error)
    assert "its dimension 0 of 6 does not divide by x=4" in str(error)


@pytest.mark.parametrize(
    ("sharding", "reason"),
    [
        ('[{"x":(1)2}]', "splits an axis in parts"),
        ('[{}], unreduced={"x"}', "is a sum that is outstanding"),
    ],
)
def test_what_no_partition_spec_can_say_is_refused(sharding, reason, tmp_path):
    text = f"""module {{ sdy.mesh @m = <["x"=4, "y"=2]>
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
      %0 = sdy.sharding_constraint %a <@m, {sharding}> : tensor<8xf32>
      return %0 : tensor<8xf32> }} }}"""
    path = tmp_path / "odd.mlir"
    path.write_text(text, "utf-8")
    assert reason in str(refused(path))
