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


def compiled(fn, *args, mesh=MESH, **options):
    """A plan whose collectives XLA compiles from the given shardings."""
    plan = pt.simulate(fn, *args, mesh=mesh, hardware="tpu_v5e", compile=True, **options)
    assert plan.compiled.differences == (), plan.compiled
    return plan


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


def test_what_plan_does_in_parts_xla_does_not():
    """`plan` cuts a cumulative sum in parts, of which devices exchange one number each."""
    plan = compiled(jnp.cumsum, numbers(4096), in_shardings=(P(("data", "model")),))
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_gather", 4 * 4096)]
    assert "ways of its own: reduce_window" in plan.history[0].warnings[0]


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


def test_a_conflict_goes_to_where_shardy_takes_it():
    plan = compiled(lambda x: jax.nn.softmax(x @ x.T) @ x, numbers(16, 8), in_shardings=P("data"))
    assert plan.out_shardings == P("data")
    assert [c.kind for c in plan.collectives] == ["all_gather", "all_gather"]


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


def test_of_a_train_step_it_is_what_xla_compiles():
    """Two gradients of the tied embedding are summed over devices one by one; `plan` adds first."""
    model = models.build("gpt-tiny", dtype="float32")
    plan = pt.simulate(
        model.fn,
        *model.args,
        mesh="data=8",
        hardware="tpu_v5e",
        in_shardings={"batch*": P("data")},
        donate_argnums=0,
        compile=True,
    )
    tactic = pt.ManualPartition({"batch*": 0}, axis="data")
    same = pt.plan(
        model.fn, *model.args, mesh="data=8", hardware="tpu_v5e", tactics=[tactic], donate_argnums=0
    )
    assert plan.compiled.differences == ()
    assert plan.compiled.time.step_time == pytest.approx(plan.estimate.step_time)
    assert len(plan.collectives) == len(same.collectives) + 1


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


# -------------------------------------------------------------------------------- as XLA executes


def layers(weights, x):
    def layer(x, w):
        x = pt.constrain(x, P("data", None, None))
        h = pt.constrain(jax.nn.silu(x @ w["in"]), P("data", None, "model"))
        return pt.constrain(x + h @ w["out"], P("data", None, None)), None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)


LAYERS = {"in": numbers(3, 32, 64), "out": numbers(3, 64, 32)}, numbers(16, 8, 32)
SPECS = {"in": P(None, "data", "model"), "out": P(None, "model", "data")}, P("data")


def test_weights_are_gathered_where_they_are_split_along_the_axis_of_the_batch():
    plan = simulated(layers, *LAYERS, in_shardings=SPECS)
    assert [(c.kind, c.axes, c.bytes) for c in plan.collectives] == [
        ("all_gather", ("data",), 4096),
        ("all_gather", ("data",), 4096),
        ("all_reduce", ("model",), 4096),
        ("all_reduce", ("data",), 4),
    ]


def test_what_is_compiled_is_priced_with_the_users_lines():
    plan = compiled(layers, *LAYERS, in_shardings=SPECS)
    rows = {(row.kind, row.group): row for row in plan.compiled.traffic}
    assert {key: (row.count, row.bytes) for key, row in rows.items()} == {
        ("all_gather", "data"): (6, 6 * 4096),
        ("all_reduce", "model"): (3, 3 * 4096),
        ("all_reduce", "data"): (1, 4),
    }
    seconds = plan.estimate.traffic["all_gather", ("data",)].seconds
    assert rows["all_gather", "data"].seconds == pytest.approx(seconds)
    assert all("test_simulate.py:" in row.sources[0] for row in rows.values())
    assert "The quick answer has the same collectives." in str(plan)
    assert plan.compiled.as_dict()["differences"] == []


def test_where_the_quick_answer_differs_the_report_says_so():
    """A table that is split along both axes: XLA exchanges the indices otherwise."""
    specs = P("model", "data"), P("data")
    args = numbers(512, 32), np.zeros(128, np.int32)
    plan = pt.simulate(
        lambda table, at: table[at],
        *args,
        mesh=MESH,
        hardware="cpu",
        in_shardings=specs,
        out_shardings=P("data"),
        compile=True,
    )
    assert any(line.startswith("all_gather of ") for line in plan.compiled.differences)
    assert "The quick answer differs from what is compiled" in str(plan)
    assert "ways of its own: gather" in plan.history[0].warnings[0]


def test_without_compiling_nothing_is_said_of_it():
    plan = pt.simulate(mlp, *ARGS, mesh=MESH, hardware="cpu", in_shardings=P())
    assert plan.compiled is None
    assert "Compiled" not in str(plan)


def test_tactics_go_on_from_the_given_shardings():
    tactic = pt.ManualPartition({"*['w1']": 1}, axis="model")
    specs = ({"w1": P(), "w2": None}, P("data"))
    plan = simulated(mlp, *ARGS, in_shardings={"x": P("data")}, tactics=[tactic])
    assert plan.in_shardings == ({"w1": P(None, "model"), "w2": P("model")}, P("data"))
    given = pt.simulate(
        mlp, *ARGS, mesh=MESH, hardware="cpu", in_shardings=specs, tactics=tactic, compile=True
    )
    assert given.in_shardings[0]["w1"] == P()  # what is given stays
    assert "pinned along model" in str(given.history[1].refused[0])
    assert given.compiled is not None


def test_a_plan_is_saved_loaded_and_compared(tmp_path):
    path = tmp_path / "given.json"
    out = P()
    plan = pt.simulate(
        layers, *LAYERS, mesh=MESH, hardware="tpu_v5e", in_shardings=SPECS, out_shardings=out
    )
    plan.save(path)
    for loaded in (pt.load(path, layers, *LAYERS), pt.load(path, layers, *LAYERS, rebase=True)):
        assert loaded.estimate == plan.estimate
        assert loaded.collectives == plan.collectives
        assert loaded.in_shardings == SPECS
        assert not loaded.not_kept
    deeper = {name: numbers(5, *w.shape[1:]) for name, w in LAYERS[0].items()}
    rebased = pt.load(path, layers, deeper, LAYERS[1], rebase=True)
    assert rebased.in_shardings == SPECS and not rebased.not_kept
    searched = pt.plan(layers, *LAYERS, mesh=MESH, hardware="tpu_v5e")
    assert "Collectives" in str(plan.diff(searched))
    searched.save(tmp_path / "searched.json")
    done = CliRunner().invoke(app, ["compare", str(path), str(tmp_path / "searched.json")])
    assert done.exit_code == 0 and "all_gather" in done.output


def test_what_a_plan_cannot_say_is_told():
    """Shardy shards a part of an axis where a dimension of 2 comes first."""
    fn = lambda x: jnp.tanh(x.reshape(2, 32))  # noqa: E731
    plan = pt.simulate(fn, numbers(64), mesh=MESH, hardware="cpu", in_shardings=P("data"))
    assert "Shardy has" in plan.history[0].warnings[0]


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


def test_the_command_compiles_and_saves(tmp_path):
    plan = tmp_path / "plan.json"
    given = ["--mesh", "data=8", "--hardware", "tpu_v5e", "--in", "batch*=data,-"]
    done = run("mlp", *given, "--compile", "--save", str(plan), "--json")
    made = json.loads(done.output)
    assert made["compiled"]["differences"] == []
    assert made["compiled"]["collectives"][0]["kind"] == "all_reduce"
    assert plan.exists()


@pytest.mark.parametrize("text", ["batch", "=data", "batch=da ta", "batch=data;-"])
def test_the_command_with_a_spec_that_cannot_be_read(text):
    done = run("mlp", "--mesh", MESH, "--hardware", "cpu", "--in", text)
    assert isinstance(done.exception, pt.SpecError)
    assert "expected PATTERN=ENTRY,ENTRY" in str(done.exception)
