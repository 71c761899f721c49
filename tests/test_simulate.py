"""`simulate`: the user's own specs, propagate, priced and run."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import NamedSharding, PartitionSpec
from typer.testing import CliRunner

import partita as pt
from checks import numbers, runs_as_the_original
from partita import models
from partita.cli import app

P = PartitionSpec
MESH = "data=4,model=2"


def mlp(params, x):
    hidden = jax.nn.relu(x @ params["w1"])
    return {"y": hidden @ params["w2"], "x": x}


ARGS = {"w1": numbers(16, 32), "w2": numbers(32, 8)}, numbers(64, 16)


def simulated(fn, *args, mesh=MESH, **options):
    plan = pt.simulate(fn, *args, mesh=mesh, hardware="tpu_v5e", **options)
    return runs_as_the_original(plan, *args)


def test_specs_are_kept_and_propagate():
    plan = simulated(mlp, *ARGS, in_shardings=({"w1": P(None, "model"), "w2": None}, P("data")))
    assert plan.in_shardings == ({"w1": P(None, "model"), "w2": P("model")}, P("data"))
    assert plan.out_shardings == {"y": P("data"), "x": P("data")}
    assert [(c.kind, c.axes) for c in plan.collectives] == [("all_reduce", ("model",))]
    assert plan.history[0].decisions == (
        "keeps params['w1'] as (-, model)",
        "keeps x as (data, -)",
    )
    assert len(plan.history) == 1


def test_what_plan_does_in_parts_is_done_in_parts_here_too():
    """Of a cumulative sum the devices exchange one number of each shard, not the shards."""
    plan = simulated(jnp.cumsum, numbers(4096), in_shardings=(P(("data", "model")),))
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_gather", 8 * 4)]


@pytest.mark.parametrize(
    "specs",
    [
        ({"w1": P(), "w2": P()}, P("data")),
        (P(), P("data")),
        [P(), P("data")],
        {"params*": P(), "x": P("data")},
        {"*": P(), "x": P("data")},
    ],
    ids=["tree", "prefix", "list", "patterns", "the last counts"],
)
def test_forms_of_specs(specs):
    plan = pt.simulate(mlp, *ARGS, mesh=MESH, hardware="cpu", in_shardings=specs)
    assert plan.in_shardings == ({"w1": P(), "w2": P()}, P("data"))


@pytest.mark.parametrize(
    "specs",
    [{"y": P(None, "model"), "x": P()}, {"*['y']": P(None, "model"), "*['x']": P()}],
    ids=["tree", "patterns"],
)
def test_specs_of_results_where_facts_meet_the_value_moves(specs):
    plan = simulated(mlp, *ARGS, in_shardings={"x": P("data")}, out_shardings=specs)
    assert plan.in_shardings[1] == P("data")
    assert plan.out_shardings == {"y": P(None, "model"), "x": P()}
    assert [c.kind for c in plan.collectives] == ["all_gather", "all_gather"]


def test_one_value_as_two_results_with_different_specs():
    def fn(a):
        b = 2 * a
        return b, b, a

    specs = P("data"), P(None, "model"), P("model", "data")
    plan = simulated(fn, numbers(8, 8), in_shardings=P(), out_shardings=specs)
    assert plan.out_shardings == specs
    assert plan.in_shardings == (P(),)


def test_an_axis_that_is_not_named_does_not_split():
    plan = simulated(
        lambda x, y: x + y, numbers(8, 8), numbers(8, 8), in_shardings=(P(), P("data"))
    )
    assert plan.in_shardings == (P(), P("data"))


def test_constraints_inside_count_too():
    def fn(a):
        return jnp.tanh(constrained(2 * a, P(None, "model")))

    with jax.set_mesh(
        jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ):
        plan = simulated(jax.jit(fn), numbers(8, 8), in_shardings=P("model"))
    assert [c.kind for c in plan.collectives] == ["all_to_all"]


def test_a_conflict_goes_to_the_dimension_that_comes_first():
    plan = simulated(lambda x: jax.nn.softmax(x @ x.T) @ x, numbers(16, 8), in_shardings=P("data"))
    assert plan.out_shardings == P("data")
    assert plan.history[0].resolved[0].endswith("it went to 0")


def test_donated_buffers_stay_in_place():
    plan = pt.simulate(
        lambda s, g: s - g,
        numbers(8, 8),
        numbers(8, 8),
        mesh=MESH,
        hardware="cpu",
        in_shardings=(P("data"), P()),
        donate_argnums=0,
    )
    assert plan.out_shardings == P("data")
    with pytest.raises(pt.UnsupportedError, match=r"s and result share a buffer.* do not donate"):
        pt.simulate(
            lambda s, g: s - g,
            numbers(8, 8),
            numbers(8, 8),
            mesh=MESH,
            hardware="cpu",
            in_shardings=(P("data"), P()),
            out_shardings=P("model"),
            donate_argnums=0,
        )


def test_of_a_train_step_it_is_what_the_same_tactics_cost():
    model = models.build("gpt-tiny", dtype="float32")
    plan = pt.simulate(
        model.fn,
        *model.args,
        mesh="data=8",
        hardware="tpu_v5e",
        in_shardings={"batch*": P("data")},
        donate_argnums=0,
    )
    tactic = pt.ManualPartition({"batch*": 0}, axis="data")
    same = pt.plan(
        model.fn, *model.args, mesh="data=8", hardware="tpu_v5e", tactics=[tactic], donate_argnums=0
    )
    assert plan.estimate.step_time == pytest.approx(same.estimate.step_time)
    assert sorted(map(str, plan.collectives)) == sorted(map(str, same.collectives))


def test_keyword_arguments_and_random_keys():
    def fn(*, key, x):
        return jax.vmap(jax.random.normal)(key) + x

    args = {"key": jax.random.split(jax.random.key(0), 8), "x": numbers(8)}
    plan = pt.simulate(fn, mesh=MESH, hardware="cpu", in_shardings={"key": P("data")}, **args)
    np.testing.assert_allclose(plan.jit()(**args), fn(**args), rtol=1e-6)
    assert plan.out_shardings == P("data")


@pytest.mark.parametrize(
    ("specs", "error", "message"),
    [
        (
            (P(), P("dta")),
            pt.AxisError,
            r"^x: its sharding P\('dta',\) does not fit: .* no axis 'dta'; did you mean 'data'",
        ),
        ((P(), P("data", "data")), pt.SpecError, "^x: its sharding .* names the axis 'data' twice"),
        ((P(), P(("data", "model"), "model")), pt.SpecError, "names the axis 'model' twice"),
        (
            (P(), P(None, None, "data")),
            pt.SpecError,
            "^x has 2 dimensions, but its sharding .* has 3 entries",
        ),
        ((P(), P(("data", "model"), None)), None, ""),
        ({"*['w2']": P(None, ("model", "data", "extra"))}, pt.AxisError, "extra"),
        ((P(), P(P.UNCONSTRAINED)), pt.SpecError, "leaves some dimensions open"),
        ((P(), P(), P()), pt.SpecError, "in_shardings is nested otherwise"),
        (({"w3": P()}, None), pt.SpecError, "in_shardings is nested otherwise"),
        ({"y*": P()}, pt.UnknownNameError, r"'y\*' matches none"),
        ((P(), "data"), pt.SpecError, "expected a PartitionSpec, got 'data'"),
    ],
)
def test_specs_that_do_not_fit(specs, error, message):
    def make():
        return pt.simulate(mlp, *ARGS, mesh=MESH, hardware="cpu", in_shardings=specs)

    if error is None:
        assert make().in_shardings[1] == P(("data", "model"))
        return
    with pytest.raises(error, match=message):
        make()


def test_a_size_that_does_not_divide():
    with pytest.raises(
        pt.SpecError,
        match=r"^x: .* splits dimension 0 of 6, which does not divide by data=4 x model=2",
    ):
        pt.simulate(
            jnp.tanh, numbers(6, 8), mesh=MESH, hardware="cpu", in_shardings=P(("data", "model"))
        )


def test_a_sharding_over_another_mesh():
    other = NamedSharding(
        jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)), P("data")
    )
    with pytest.raises(pt.SpecError, match="its sharding is for mesh data=8, but the plan for"):
        pt.simulate(jnp.tanh, numbers(8, 8), mesh=MESH, hardware="cpu", in_shardings=other)


# -------------------------------------------------------------------------------------- command


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_the_command():
    done = run(
        "mlp",
        "--mesh",
        MESH,
        "--hardware",
        "tpu_v5e",
        "--in",
        "batch*=data,-",
        "--in",
        "*params*[0]['w']=-,model",
    )
    assert done.exit_code == 0, done.output
    assert "as (data, -)" in done.output
    assert "ManualPartition" not in done.output and "Automatic" not in done.output


def test_the_command_as_json_and_from_a_file(tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(str(jax.jit(lambda x: (2 * x, x)).lower(numbers(8, 8)).compiler_ir()), "utf-8")
    done = run(
        str(path),
        "--mesh",
        MESH,
        "--hardware",
        "cpu",
        "--in",
        "arg0=(data+model, -)",
        "--out",
        "result[1]=-,data",
        "--json",
    )
    made = json.loads(done.output)
    assert made["arguments"][0]["sharding"] == [["data", "model"]]


@pytest.mark.parametrize("text", ["batch", "=data", "batch=da ta", "batch=data;-"])
def test_the_command_with_a_spec_that_cannot_be_read(text):
    done = run("mlp", "--mesh", MESH, "--hardware", "cpu", "--in", text)
    assert isinstance(done.exception, pt.SpecError)
    assert "expected PATTERN=ENTRY,ENTRY" in str(done.exception)
