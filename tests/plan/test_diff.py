"""`Plan.diff`: two plans of one program, side by side."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import partita as pt
from checks import array


def stack(layers, x):
    for up, down in layers:
        x = checkpoint_name(jax.nn.relu(x @ up), "hidden") @ down
    return x


ARGS = [(array(64, 256), array(256, 64))] * 2, array(512, 64)
BATCH = pt.ManualPartition({"x": 0}, axis="data")
COLUMNS = pt.ManualPartition({"layers[0][0]": 1, "layers[1][0]": 1}, axis="model")


def plan(*tactics, mesh="data=4,model=2", hardware="tpu_v5e", fn=stack, args=ARGS):
    return pt.plan(fn, *args, mesh=mesh, hardware=hardware, tactics=tactics)


def test_a_tactic_more():
    before, after = plan(BATCH), plan(BATCH, COLUMNS)
    found = before.diff(after)
    assert found.tactics == ((BATCH.name,), (BATCH.name, COLUMNS.name))
    assert found.mesh == ("data=4,model=2", "data=4,model=2")
    assert [(c.name, c.before, c.after) for c in found.costs] == [
        (name, getattr(before.estimate, name), getattr(after.estimate, name))
        for name in (
            "step_time", "compute_time", "exposed_time", "hidden_time", "peak_memory",
            "argument_memory",
        )
    ]  # fmt: skip
    (traffic,) = found.collectives
    assert (traffic.kind, traffic.axes, traffic.before) == ("all_reduce", ("model",), None)
    assert traffic.after == after.estimate.traffic["all_reduce", ("model",)]
    assert traffic.after.count == 2
    assert [(s.name, s.count, s.before, s.after) for s in found.shardings] == [
        ("layers[*][0]", 2, (None, None), (None, "model")),
        ("layers[*][1]", 2, (None, None), ("model", None)),
        ("hidden", 2, ("data", None), ("data", "model")),
    ]


def test_the_other_way_round_is_the_opposite():
    before, after = plan(BATCH), plan(BATCH, COLUMNS)
    there, back = before.diff(after), after.diff(before)
    assert [(c.before, c.after) for c in there.costs] == [(c.after, c.before) for c in back.costs]
    assert {(s.name, s.before, s.after) for s in there.shardings} == {
        (s.name, s.after, s.before) for s in back.shardings
    }


def test_a_plan_and_itself():
    made = plan(BATCH, COLUMNS)
    found = made.diff(made)
    assert found.shardings == ()
    assert all(c.before == c.after for c in (*found.costs, *found.collectives))
    assert "the same tactics" in str(found)
    assert "are sharded alike" in str(found)


def test_meshes_and_hardware_may_differ():
    found = plan(BATCH).diff(plan(BATCH, mesh="data=8", hardware="h100"))
    assert found.mesh == ("data=4,model=2", "data=8")
    assert found.hardware == ("tpu_v5e", "h100")
    assert found.shardings == ()  # split along an axis of the same name
    assert str(found).startswith("mesh data=4,model=2 -> data=8\nhardware tpu_v5e -> h100\n")


def test_the_table():
    lines = str(plan(BATCH).diff(plan(BATCH, COLUMNS))).splitlines()
    assert f"  {BATCH.name}" in lines
    assert f"+ {COLUMNS.name}" in lines
    (row,) = (line.split() for line in lines if line.startswith("all_reduce"))
    assert row[:5] == ["all_reduce", "model", "0", "->", "2"]
    (row,) = (line for line in lines if line.startswith("hidden"))
    assert row.split("  ")[0] == "hidden x2"
    assert "(data, -)" in row and "(data, model)" in row


def test_a_plan_that_does_not_fit_is_named():
    small = pt.plan(stack, *ARGS, mesh="data=4", hardware="tpu_v5e", tactics=[BATCH], memory=1000)
    found = plan(BATCH).diff(small)
    assert found.fits == (True, False)
    assert "DOES NOT FIT: the plan after" in str(found)


def test_it_is_data():
    found = plan(BATCH).diff(plan(BATCH, COLUMNS))
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["tactics"][1] == [BATCH.name, COLUMNS.name]
    assert plain["collectives"][0]["after"]["count"] == 2


def test_plans_of_other_programs_are_refused():
    wider = ([(array(64, 512), array(512, 64))] * 2, array(512, 64))
    message = (
        r"plans of different programs \(stack and stack\) cannot be compared: argument "
        r"'layers\[0\]\[0\]' is f32\[64,256\] in one and f32\[64,512\] in the other;.*; plan the "
        "same function"
    )
    with pytest.raises(pt.TacticError, match=message):
        plan(BATCH).diff(plan(BATCH, args=wider))
    with pytest.raises(pt.TacticError, match=r"'layers\[0\]\[0\]' is f32.* in one and missing"):
        plan(BATCH).diff(plan(fn=jnp.tanh, args=[array(8)]))
