"""Guards: a plan held to a file, with the difference as a diff."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner
from partita import cli
from partita.text import seconds, size

ARGS = array(1024, 4096), array(4096, 1024), array(512, 1024)
PAGE = Path(__file__).parents[2] / "docs" / "guards.md"
TACTICS = [pt.ManualPartition({"x": 0}, axis="data"), pt.ManualPartition({"w1": 1}, axis="model")]
planned = planner(mesh="data=4,model=2", tactics=TACTICS)


def feed_forward(w1, w2, x):
    return jax.nn.relu(x @ w1) @ w2


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # so that the diff says plan.json
    planned(feed_forward, *ARGS).save("plan.json")
    return "plan.json"


def step_of(plan):
    return seconds(plan.estimate.step_time)


def peak_of(plan):
    return size(plan.estimate.peak_memory)


def changed(file, plan, **tolerances):
    """The message of the error."""
    with pytest.raises(pt.PlanChangedError) as caught:
        pt.testing.assert_plan(plan, file, **tolerances)
    return str(caught.value)


def test_the_same_plan_passes(file):
    plan = planned(feed_forward, *ARGS)
    pt.testing.assert_plan(plan, file)
    found = pt.testing.check_plan(plan, file)
    assert found.passed and not found.differs
    assert str(found) == f"plan.json holds: step {step_of(plan)}, peak {peak_of(plan)}"
    assert repr(found) == "<PlanCheck of plan.json: passed>"


def test_a_line_that_moved_is_no_difference(file):
    # The same program, its lines further down.
    def feed_forward(w1, w2, x):
        hidden = x @ w1
        return jax.nn.relu(hidden) @ w2

    found = pt.testing.check_plan(planned(feed_forward, *ARGS), file)
    assert not found.differs


def test_the_difference_is_a_diff_by_names(file):
    def feed_forward(w1, w2, x):
        return jax.nn.relu(jnp.sort(x @ w1, axis=0)) @ w2

    line = feed_forward.__code__.co_firstlineno + 1
    was, plan = pt.load(file, globals()["feed_forward"], *ARGS), planned(feed_forward, *ARGS)
    steps, peaks = ([each(p) for p in (was, plan)] for each in (step_of, peak_of))
    slower = f"{plan.estimate.step_time / was.estimate.step_time - 1:+.1%}".replace("%", " %")
    larger = f"{plan.estimate.peak_memory / was.estimate.peak_memory - 1:+.1%}".replace("%", " %")
    text = changed(file, plan)
    found = text.splitlines()
    assert found[:6] + found[9:] == [
        "--- plan.json",
        "+++ feed_forward",
        "@@ results @@",
        "-result  f32[512,1024]  (data)",
        "+result  f32[512,1024]  replicated",
        "@@ collectives @@",
        "@@ step, per device @@",
        f"-step time {steps[0]}",
        f"+step time {steps[1]}  ({slower})",
        f"-peak memory {peaks[0]}",
        f"+peak memory {peaks[1]}  ({larger})",
        "fails: result is sharded replicated, was (data)",
        "fails: 1 all_gather over data more, 1 in all",
        f"fails: step time {steps[1]} is {slower}; +5 % is the most",
        f"fails: peak memory {peaks[1]} is {larger}; +2 % is the most",
        "PARTITA_UPDATE_PLANS=1 takes it over",
    ]
    removed, *added = found[6:9]
    assert removed.startswith("-all_reduce over model, 512.0 KiB, of dot_general at ")
    assert added[0].startswith("+all_reduce over model, 2.0 MiB, of dot_general at ")
    assert added[1].startswith("+all_gather over data, 4.0 MiB, of dot_general at ")
    assert all(each.endswith(f"test_check.py:{line}") for each in added)


def test_it_is_an_assertion_error_of_ours():
    assert issubclass(pt.PlanChangedError, AssertionError)
    assert issubclass(pt.PlanChangedError, pt.PartitaError)


def test_arguments_that_are_new_or_gone_fail(file):
    text = changed(file, planned(lambda w1, v2, x: feed_forward(w1, v2, x), *ARGS))
    assert "-w2  f32[4096,1024]  (model)\n+v2  f32[4096,1024]  (model)\n" in text
    assert "fails: argument w2 is gone\nfails: argument v2 is new\n" in text


def test_alike_arguments_are_one_line(tmp_path):
    def net(layers, x):
        for w1, w2 in layers:
            x = feed_forward(w1, w2, x)
        return x

    args = [array(64, 128), array(128, 64)], array(32, 64)
    deep = [args[0]] * 3, args[1]
    rows = pt.ManualPartition({"x": 0}, axis="data")
    planned(net, *deep, tactics=[rows]).save(tmp_path / "plan.json")
    hidden = pt.ManualPartition({"layers[*][0]": 1}, axis="model")
    text = changed(tmp_path / "plan.json", planned(net, *deep, tactics=[rows, hidden]))
    assert "-layers[*][0] x3  f32[64,128]  replicated\n" in text
    assert "+layers[*][0] x3  f32[64,128]  (-, model)\n" in text
    assert "fails: 3 all_reduce over model more, 3 in all\n" in text


def test_sizes_alone_are_shown_and_are_no_failure(file):
    small = ARGS[0], ARGS[1], array(256, 1024)
    found = pt.testing.check_plan(planned(feed_forward, *small), file)
    assert found.passed
    assert "-x  f32[512,1024]  (data)\n+x  f32[256,1024]  (data)\n" in str(found)
    assert str(found).endswith("within the tolerances")


@pytest.mark.parametrize(
    ("tolerances", "failing"),
    [
        ({}, ["step time", "peak memory"]),
        ({"step": 3}, ["peak memory"]),
        ({"memory": 3}, ["step time"]),
        ({"step": 3, "memory": 3}, []),
    ],
)
def test_tolerances(tolerances, failing, file):
    large = ARGS[0], ARGS[1], array(1024, 1024)
    found = pt.testing.check_plan(planned(feed_forward, *large), file, **tolerances)
    assert [" ".join(text.split()[:2]) for text in found.failures] == failing


def test_another_mesh_or_device_type_fails(file):
    text = changed(file, planned(feed_forward, *ARGS, mesh="data=2,model=4"))
    assert "-mesh data=4,model=2\n+mesh data=2,model=4\n" in text
    assert "fails: mesh data=2,model=4, was mesh data=4,model=2" in text
    text = changed(file, planned(feed_forward, *ARGS, hardware="tpu_v6e"), step=100)
    assert "fails: hardware tpu_v6e, was hardware tpu_v5e" in text


def test_a_plan_that_does_not_fit_any_more_fails(file):
    plan = planned(feed_forward, *ARGS, memory="16MiB")
    assert "fails: it does not fit in 16.0 MiB any more" in changed(file, plan)


def test_the_file_is_written_when_asked(file, monkeypatch):
    plan = planned(feed_forward, *ARGS, tactics=[])
    monkeypatch.setenv("PARTITA_UPDATE_PLANS", "1")
    pt.testing.assert_plan(plan, file)
    pt.testing.assert_plan(plan, "new.json")
    monkeypatch.delenv("PARTITA_UPDATE_PLANS")
    pt.testing.assert_plan(plan, file)
    pt.testing.assert_plan(plan, "new.json")


def test_it_is_plain_data_too(file):
    found = pt.testing.check_plan(planned(feed_forward, *ARGS, tactics=[]), file).as_dict()
    assert json.loads(json.dumps(found)) == found
    assert list(found) == ["passed", "failures", "step_time", "peak_memory", "changes", "not_kept"]
    assert found["changes"]["arguments"][:2] == [
        "-w1  f32[1024,4096]  (-, model)",
        "+w1  f32[1024,4096]  replicated",
    ]


@pytest.mark.parametrize("wrong", [0.5, "1.05", True, float("nan")])
def test_tolerances_are_factors(wrong, file):
    with pytest.raises(pt.OptionError, match="a factor of at least 1"):
        pt.testing.assert_plan(planned(feed_forward, *ARGS), file, step=wrong)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(pt.FileError, match="cannot read the plan file"):
        pt.testing.assert_plan(planned(feed_forward, *ARGS), tmp_path / "none.json")
    with pytest.raises(pt.OptionError, match="expected a plan"):
        pt.testing.assert_plan("plan", tmp_path / "none.json")


# ------------------------------------------------------------------------------ the command


PROGRAM = """
import jax
import jax.numpy as jnp


def make():
    def feed_forward(w1, w2, x):
        return jax.nn.relu(x @ w1) @ w2

    shapes = (1024, 4096), (4096, 1024), (512, 1024)
    return feed_forward, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
"""


@pytest.fixture
def partita(monkeypatch, capsys, file):
    """Runs the command in a folder with `model.py` and its plan: exit code and output."""
    Path("model.py").write_text(PROGRAM)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["partita", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        return ended.value.code or 0, output.out, output.err

    return run


def rewrite(old, new):
    """Changes the program."""
    text = Path("model.py").read_text()
    assert old in text
    Path("model.py").write_text(text.replace(old, new))


def test_the_command_passes_what_holds(partita):
    code, out, err = partita("check", "plan.json", "model.py:make")
    assert (code, err) == (0, "")
    assert out.startswith("plan.json holds: step ")


def test_the_command_fails_with_a_diff_when_the_model_has_changed(partita):
    rewrite("relu(x @ w1)", "relu(jnp.sort(x @ w1, axis=0))")
    code, out, _ = partita("check", "plan.json", "model.py:make")
    assert code == 1
    assert out.startswith("--- plan.json\n+++ model.py:make\n@@ results @@\n-result  ")
    assert "fails: 1 all_gather over data more, 1 in all" in out
    loose = ["--step-tolerance", "9", "--memory-tolerance", "9"]
    code, out, _ = partita("check", "plan.json", "model.py:make", *loose)
    assert code == 1 and "fails: step" not in out


def test_the_command_says_what_tactics_could_not_keep(partita):
    rewrite("w1, w2, x)", "v1, w2, x)")
    rewrite("x @ w1", "x @ v1")
    code, out, _ = partita("check", "plan.json", "model.py:make", "--json")
    assert code == 1
    (first, *_) = json.loads(out)["not_kept"]
    assert first == {
        "what": "w1 dim 1 -> model",
        "reason": "feed_forward has no w1",
        "tactic": "ManualPartition(w1: 1 -> model)",
    }


def test_the_command_takes_a_difference_over(partita):
    rewrite("relu(x @ w1)", "relu(jnp.sort(x @ w1, axis=0))")
    code, out, err = partita("check", "plan.json", "model.py:make", "--update")
    assert (code, err) == (0, "plan.json is written\n")
    assert "fails: 1 all_gather" in out
    code, out, _ = partita("check", "plan.json", "model.py:make")
    assert code == 0 and "holds" in out


def test_what_the_command_cannot_read_has_another_exit_code(partita):
    code, _, err = partita("check", "none.json", "model.py:make")
    assert code == 2 and "cannot read the plan file" in err
    code, _, err = partita("check", "plan.json", "model.py:make", "--step-tolerance", "0.9")
    assert code == 2 and "a factor of at least 1" in err


def test_a_plan_is_rebased_from_the_command_line(partita):
    code, out, err = partita("plan", "model.py:make", "--rebase", "plan.json", "--save", "2.json")
    assert (code, err) == (0, "")
    assert "ManualPartition(w1: 1 -> model)" in out
    code, out, err = partita(
        "plan", "model.py:make", "--rebase", "plan.json", "--mesh", "data=8", "--json"
    )
    assert code == 0
    assert err.startswith("not kept: ManualPartition(w1: 1 -> model): everything along model: ")
    assert json.loads(out)["not_kept"][0]["what"] == "everything along model"
    assert json.loads(out)["mesh"] == {"data": 8}


def test_a_rebase_takes_no_other_tactics(partita):
    code, _, err = partita("plan", "model.py:make", "--rebase", "plan.json", "--axes", "data")
    assert code == 2 and "leave --devices, --manual and --axes out" in err
    code, _, err = partita("plan", "model.py:make", "--mesh", "data=8")
    assert code == 2 and "give --hardware" in err


def workflow_steps():
    """The scripts of the workflow that the documentation has, but for installing."""
    yaml = pytest.importorskip("yaml")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    steps = yaml.safe_load(text)["jobs"]["check"]["steps"]
    return [step["run"] for step in steps if "run" in step and "pip install" not in step["run"]]


def test_the_workflow_of_the_documentation(partita):
    rewrite("relu(x @ w1)", "relu(jnp.sort(x @ w1, axis=0))")
    Path("model.py").rename("my_model.py")
    Path("bin").mkdir()
    command = Path("bin/partita")
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m partita.cli "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent.absolute()}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }
    check, show = (
        subprocess.run(["bash", "-e", "-c", step], env=environment, capture_output=True, text=True)
        for step in workflow_steps()
    )
    assert (check.returncode, show.returncode) == (1, 0), check.stderr + show.stderr
    assert "fails: 1 all_gather over data more" in check.stdout
    assert Path("summary.md").read_text() == f"```diff\n{check.stdout}```\n"
