"""Plans verified on host devices: what is compared, what counts as a failure, what is printed."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import array
from partita.verify import OutOfMemoryError
from partita.verify.backends import Backend, backend_for


def sgd(ws, x):
    def loss(ws, x):
        h = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]
        return jnp.sum(h**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))


SCHEDULES = {
    "replicated": [],
    "data parallel": [{"x": 0}],
    "FSDP": [{"x": 0}, {"ws": 1}],
}


WEIGHTS, ROWS = array(4, 256, 256), array(512, 256)


def planned(schedule, fn=sgd, **options):
    tactics = [pt.ManualPartition(dims, axis="x") for dims in SCHEDULES[schedule]]
    options = {"donate_argnums": 0, **options}
    return pt.plan(fn, WEIGHTS, ROWS, mesh="x=4", hardware="cpu", tactics=tactics, **options)


@pytest.mark.parametrize(
    ("dtype", "wider"),
    [
        ("float32", 1),
        ("bfloat16", 2),
        ("float8_e4m3fn", 2),
        ("float8_e8m0fnu", 4),
        ("float4_e2m1fn", 4),
        ("int4", 2),
        ("uint4", 2),
        ("int8", 1),
    ],
)
def test_a_host_moves_narrow_types_as_wider_ones(dtype, wider):
    rows = pt.ManualPartition({"x": 0}, axis="x")
    x = array(16, 16, dtype=getattr(jnp, dtype))
    made = pt.plan(lambda x: jnp.roll(x, 1, 0), x, mesh="x=4", hardware="cpu", tactics=rows)
    (moved,) = made.collectives
    found = made.verify()
    assert found.passed and found.widened == (wider > 1)
    assert [c.bytes for c in found.collectives.compiled] == [wider * moved.bytes]


@pytest.fixture(scope="module")
def fsdp():
    return planned("FSDP").verify()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_compiled_is_as_predicted(schedule):
    found = planned(schedule).verify()
    assert found.passed and found.collectives.equal, f"\n{found}"
    assert found.memory.arguments == found.predicted_memory.arguments
    assert found.predicted_memory.peak == found.estimate.peak_memory
    assert found.predicted_memory.peak == pytest.approx(found.memory.peak, rel=0.4)
    assert found.time is None and not found.unknown_loops


def test_collectives_in_loops_count_as_they_stand_in_the_program(fsdp):
    counts = {e.kind: (predicted, made) for e, predicted, made in fsdp.collectives.rows()}
    assert counts["all_gather"] == (2, 2)  # a weight each way, in loops over layers
    assert counts["reduce_scatter"] == (1, 1)


def test_results_that_take_over_no_argument_are_outputs():
    found = planned("data parallel", lambda ws, x: x + 1, donate_argnums=()).verify()
    assert found.predicted_memory.outputs == 512 * 256 * 4 // 4
    assert found.memory.outputs == pytest.approx(found.predicted_memory.outputs, rel=0.01)


def test_the_annotated_form_may_differ():
    found = planned("data parallel").verify(form="annotated")
    assert found.passed and found.form == "annotated"
    assert found.memory.arguments == found.predicted_memory.arguments


def test_types_that_a_host_widens_are_told_with_their_bytes_there():
    bf16 = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    plan = pt.plan(
        lambda a, b: a @ b, bf16, bf16, mesh="x=4", hardware="cpu",
        tactics=[pt.ManualPartition({"a": 1}, "x")],
    )  # fmt: skip
    found = plan.verify()
    assert found.passed and found.widened
    ((collective, _, _),) = found.collectives.rows()
    assert collective.bytes == 64 * 64 * 4 == 2 * plan.collectives[0].bytes
    assert "bfloat16 in float32" in str(found)


def test_keywords_and_hoisted_constants_are_lowered_without_being_placed():
    table = np.arange(512 * 8, dtype=np.float32).reshape(512, 8)
    plan = pt.plan(
        lambda x, *, scale: x @ (table * scale), array(16, 512), scale=array(), mesh="x=4",
        hardware="cpu", hoist_constants=True, tactics=[pt.ManualPartition({"x": 0}, "x")],
    )  # fmt: skip
    assert plan.closed_over
    assert plan.verify().passed


# ---------------------------------------------------------------------------- failures


def test_other_collectives_than_predicted_are_a_failure_on_a_host_only(fsdp):
    fewer = dataclasses.replace(fsdp.collectives, predicted=fsdp.collectives.predicted.copy())
    fewer.predicted.popitem()
    wrong = dataclasses.replace(fsdp, collectives=fewer)
    assert not wrong.passed
    assert "DIFFERS: the compiled program has other collectives" in str(wrong)
    assert dataclasses.replace(wrong, backend=backend_for("v5e:2x2")).passed
    assert dataclasses.replace(wrong, form="annotated").passed


@pytest.mark.parametrize(("memory", "passed"), [("1GiB", False), ("1kB", True)])
def test_running_out_of_memory_is_a_failure_where_the_plan_was_to_fit(monkeypatch, memory, passed):
    def full(*args, **options):
        raise OutOfMemoryError("compiling runs out of memory: 2.00G of 1.00G", 2**31, 2**30)

    monkeypatch.setattr(Backend, "compile", full)
    found = planned("FSDP", memory=memory).verify()
    assert found.estimate.fits is not passed
    assert found.passed is passed
    assert found.memory is None and found.collectives is None
    assert "2.00G of 1.00G" in str(found)
    assert found.as_dict()["out_of_memory"]["used"] == 2**31


def test_too_few_host_devices():
    plan = pt.plan(lambda x: x + 1, array(64), mesh="x=64", hardware="cpu", tactics=[])
    with pytest.raises(pt.MeshError, match=r"needs 64 host devices, this process has 8.*=64"):
        plan.verify()


def test_an_unknown_form():
    with pytest.raises(pt.FileError, match="no form 'tiled'; expected partitioned or annotated"):
        planned("replicated").verify(form="tiled")


# ------------------------------------------------------------------------------ output


def test_the_report(fsdp):
    lines = str(fsdp).splitlines()
    assert lines[0] == "sgd on mesh x=4, partitioned form, for host devices"
    gathers = next(line for line in lines if line.startswith("all_gather"))
    assert gathers.split() == ["all_gather", "x", "256.0", "KiB", "2", "2"]
    arguments = next(line for line in lines if line.startswith("arguments"))
    assert arguments.split()[-1] == "1.00"
    assert lines[-1] == "As predicted."


def test_the_summary_is_json_of_the_same(fsdp):
    found = json.loads(json.dumps(fsdp.as_dict()))
    assert found["passed"] and found["problems"] == []
    assert found["memory"]["compiled"]["peak"] == fsdp.memory.peak
    assert {c["kind"]: c["compiled"] for c in found["collectives"]}["all_gather"] == 2
    assert found["topology"] is None and found["time"] is None
