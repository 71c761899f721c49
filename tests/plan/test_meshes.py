"""Plans for a number of devices: over which mesh, what others would take, and what goes wrong."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import partita as pt
from checks import array, assert_same, numbers
from partita.planning import prepare
from partita.report.collect import summary
from partita.search import EnoughError

X, W = array(64, 32), array(32, 64)
plan = functools.partial(pt.plan, hardware="tpu_v5e", devices=8)


def layer(x, w):
    return jnp.tanh(x @ w) @ w.T


def step(w, v, x):
    """Two layers, forward, backward and the descent."""

    def loss(w, v):
        return jnp.sum(jnp.tanh(x @ w) @ v)

    for_w, for_v = jax.grad(loss, argnums=(0, 1))(w, v)
    return w - for_w, v - for_v


STEP = (array(1024, 4096), array(4096, 1024), array(512, 1024))
DATA_AND_MODEL = [
    pt.ManualPartition({"x": 0}, axis="x"),
    pt.ManualPartition({"w": 1, "v": 0}, axis="y"),
]


@pytest.fixture(scope="module")
def found():
    return plan(step, *STEP, budget=100)


# ------------------------------------------------------------------------------ which it is


def test_the_plan_is_the_best_over_any_mesh(found):
    times = [each.estimate.step_time for each in found.meshes]
    assert found.estimate.step_time == times[0] == min(times)
    assert [each.mesh for each in found.meshes if each.chosen] == [found.mesh]
    assert {each.mesh.sizes for each in found.meshes} == {(8,), (4, 2), (2, 2, 2)}


def test_it_is_the_plan_over_that_mesh(found):
    budget = found.meshes[0].budget
    same = pt.plan(step, *STEP, hardware="tpu_v5e", mesh=found.mesh, budget=budget)
    assert same.estimate == found.estimate
    assert same.in_shardings == found.in_shardings
    assert same.meshes == ()


def test_plans_that_do_not_fit_come_behind_all_that_do():
    """Nothing is split along `x`, so that only `y` saves memory."""
    rows = pt.ManualPartition({"x": 0}, axis="y")
    made = plan(lambda x: x + 1, array(1024, 1024), tactics=[rows], memory="3MiB")
    fits = [each.estimate.fits for each in made.meshes]
    assert made.estimate.fits
    assert fits == sorted(fits, reverse=True) and not all(fits)


def test_among_meshes_that_are_as_good_the_one_with_fewer_axes_is_chosen():
    made = plan(jnp.sin, array(64, 64))
    assert made.mesh == pt.Mesh.of("x=8")


def test_tactics_by_hand_are_applied_over_every_mesh():
    tactics = [pt.ManualPartition({"x": 0}, axis="x"), pt.ManualPartition({"w": 1}, axis="y")]
    made = plan(layer, X, W, tactics=tactics)
    assert sorted(each.mesh.sizes for each in made.meshes) == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert {each.budget for each in made.meshes} == {None}
    assert [entry.name for entry in made.history] == [tactic.name for tactic in tactics]


def test_between_nodes_the_axis_that_moves_more_lies_on_the_fast_network():
    """Sums of activations, which are larger than the weights, and more than the nodes can hide."""
    args = array(1024, 1024), array(1024, 1024), array(16384, 1024)
    made = plan(step, *args, devices=16, hardware="h100", tactics=DATA_AND_MODEL)
    assert made.meshes[0].networks["y"] == "nvlink"
    assert made.meshes[0].networks["x"] == "nvlink 2 x infiniband 2"


# ------------------------------------------------------------------------------- what it takes


def test_a_program_is_traced_and_analysed_once(monkeypatch):
    calls = []

    def counted(name):
        original = getattr(prepare, name)
        return lambda *args, **kwargs: calls.append(name) or original(*args, **kwargs)

    for name in ("trace", "analyse"):
        monkeypatch.setattr(prepare, name, counted(name))
    plan(layer, X, W, budget=10)
    assert calls == ["trace", "analyse"]


def test_all_meshes_get_a_part_of_the_budget_and_those_close_to_the_best_all_of_it():
    """A thirtieth for each axis of more than one device."""
    search = pt.AutomaticPartition("y", budget=6000)
    tactics = [pt.ManualPartition({"x": 0}, axis="x"), search]
    made = plan(step, *STEP, devices=16, hardware="h100", tactics=tactics)
    first, *others = made.meshes
    assert first.budget == 6000
    far = [each for each in others if each.estimate.step_time > 1.2 * first.estimate.step_time]
    assert len(far) == 4
    assert {each.mesh.sizes: each.budget for each in far} == {
        each.mesh.sizes: 200 if 1 in each.mesh.sizes else 400 for each in far
    }


def test_progress_is_that_of_all_searches_and_names_the_mesh():
    told = []
    plan(layer, X, W, budget=150, progress=lambda *said: told.append(said))
    done, totals, texts = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {100 + 150 + 150 + 150}  # looks, and more for the one of one axis
    assert texts[0].startswith("x=8: best ") and texts[-1].startswith("x=")


def test_what_comes_later_has_a_progress_of_its_own():
    told = []
    made = plan(layer, X, W, budget=60, progress=lambda *said: told.append(said))
    told.clear()
    later = made.then(pt.AutomaticPartition(budget=5))
    assert {total for _, total, _ in told} == {5}
    assert later.mesh == made.mesh and later.meshes == ()


def test_a_search_that_is_interrupted_is_the_last():
    def enough(done, total, text):
        if text.startswith("x=4,y=2"):
            raise EnoughError

    made = plan(layer, X, W, budget=60, progress=enough)
    assert {each.mesh.sizes for each in made.meshes} == {(8,), (4, 2)}


# --------------------------------------------------------------- what the program says itself


def test_a_program_that_names_axes_is_planned_over_the_meshes_that_have_them():
    def constrained(x):
        return jnp.sin(pt.constrain(x, ("y", None)))

    made = plan(constrained, X, budget=10)
    assert {each.mesh.sizes for each in made.meshes} == {(4, 2), (2, 4), (2, 2, 2)}


def test_a_program_that_says_their_sizes_is_planned_over_that_mesh():
    mesh = jax.sharding.AbstractMesh((2, 4), ("x", "y"))
    given = jax.ShapeDtypeStruct((64, 32), "f4", sharding=NamedSharding(mesh, PartitionSpec("y")))
    made = plan(layer, given, W, budget=10)
    assert [each.mesh.sizes for each in made.meshes] == [(2, 4)]


def test_arrays_that_lie_over_devices_say_nothing():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(numbers(64, 32), NamedSharding(mesh, PartitionSpec(None, "x")))
    assert len(plan(layer, x, W, budget=10).meshes) == 3


def test_other_axes_in_a_program_need_a_mesh():
    told = (
        "has no axis 'data'.*; devices= tries meshes with the axes x, y, z; give mesh= for others"
    )
    with pytest.raises(pt.AxisError, match=told):
        plan(lambda x: pt.constrain(x, ("data", None)), X)


def test_so_do_constraints_for_the_mesh_that_is_set():
    def constrained(x):
        return jax.lax.with_sharding_constraint(x, PartitionSpec("x"))

    told = "With devices=, which mesh it is, is not known .*: use partita.constrain, or give mesh="
    with pytest.raises(pt.TraceError, match=told):
        plan(constrained, X)


# ---------------------------------------------------------------------------------- what is said


def test_a_report_has_a_table_of_the_meshes(found):
    lines = str(found).splitlines()
    start = lines.index("Meshes of 8 devices")
    assert lines[start + 1].split() == "mesh networks step time peak memory plans".split()
    assert lines[start + 2].startswith(f"{found.mesh}  ") and lines[start + 2].endswith("chosen")
    assert not lines[start + 2 + len(found.meshes)]


def test_without_a_choice_it_has_none():
    assert "Meshes of" not in str(pt.plan(layer, X, W, mesh="data=8", hardware="cpu", tactics=[]))


def test_json_has_a_row_for_each(found):
    rows = summary(found.done, found.meshes)["meshes"]
    assert rows[0]["mesh"] == dict(found.mesh) and rows[0]["chosen"]
    assert rows[0]["step_time"] == found.estimate.step_time
    assert set(rows[0]["networks"].values()) == {"ici"}
    assert [row["budget"] for row in rows] == [each.budget for each in found.meshes]


# ----------------------------------------------------------------------------------- and running


def test_jit_plans_for_a_number_of_devices():
    x, w = numbers(64, 32), numbers(32, 64)
    run = pt.jit(layer, devices=8, hardware="cpu", budget=50)
    assert_same(run(x, w), np.asarray(layer(x, w)))
    (made,) = run.plans.values()
    assert len(made.meshes) == 3


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, pt.MeshError, 'give one of them: mesh=..., such as "data=8", or devices=...'),
        ({"devices": 10**5}, pt.MeshError, "widest network of tpu_v5e, joins up to 65536; give"),
        (
            {"devices": 8, "tactics": [pt.DataParallel()]},
            pt.AxisError,
            "is for the axis 'data', but the meshes that devices= tries have the axes x, y, z",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_traced(options, error, message):
    with pytest.raises(error, match=message):
        pt.plan(None, X, hardware="tpu_v5e", **options)


def test_a_saved_plan_has_its_mesh():
    with pytest.raises(pt.MeshError, match="has the mesh of the plan; leave devices= out"):
        pt.jit(layer, saved="plan.json", devices=8)
