"""The command `partita`: what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from typer.main import get_command

import partita as pt
from partita import cli, cost, models
from partita.cli.planned import Planning
from partita.cost.devices.files import FOLDER
from partita.cost.devices.schema import entries
from partita.search import ALGORITHMS
from partita.verify import Comparison, HloCollective

PROGRAMS = '''
"""A user's own programs."""

import jax
import jax.numpy as jnp


def double(batch=64):
    x = jax.ShapeDtypeStruct((batch, 32), jnp.float32)
    w = jax.ShapeDtypeStruct((32, 16), jnp.float32)
    return (lambda x, w: jnp.tanh(x @ w), (x, w))


def fails():
    raise RuntimeError("no data here")


def wrong():
    return 3


def untraceable():
    return (lambda x: x @ x, (jax.ShapeDtypeStruct((2, 3), jnp.float32),))


def asks():
    def fn(x):
        return jax.pure_callback(abs, x, x)

    return fn, (jax.ShapeDtypeStruct((2, 3), jnp.float32),)


not_callable = 5
'''


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def partita(monkeypatch, capsys):
    """Runs the command in this process: exit code, standard output, standard error."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["partita", *map(str, args)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def programs(tmp_path):
    path = tmp_path / "programs.py"
    path.write_text(PROGRAMS)
    return path


@pytest.fixture
def plan(partita, programs):
    """Plans the user's `double`, by default over eight devices without a search."""

    def run(*args, mesh="data=8", hardware="tpu_v5e", axes="none", function="double"):
        options = [f"--mesh={mesh}", f"--hardware={hardware}"]
        options += [] if axes is None else [f"--axes={axes}"]
        return partita("plan", f"{programs}:{function}", *options, *args)

    return run


# ---------------------------------------------------------------------------------------- plan


def test_a_plan_as_text(plan):
    result = plan("--manual", "x:0@data")
    assert (result.code, result.err) == (0, "")
    for part in (
        "<lambda> on mesh data=8 (8 x tpu_v5e)",
        "ManualPartition(x: 0 -> data)",
        "tiled x (data, -)",
        "step time",
        "Collectives: none",
        "f32[8,32]",
    ):
        assert part in result.out


@pytest.mark.parametrize(
    ("swept", "code", "told"),
    [
        ("mesh=data=4 data=8", 0, ""),
        ("mesh=data=4 nope data=8", 1, "error: mesh=nope: cannot read 'nope' in mesh"),
        ("budget=9 many", 1, "error: budget=many: expected a whole number for budget"),
    ],
)
def test_a_sweep_prints_what_can_be_planned_and_names_what_cannot(plan, swept, code, told):
    result = plan("--sweep", swept)
    assert (result.code, result.err[: len(told)]) == (code, told)
    assert "step time" in result.out


def test_a_mesh_is_chosen_for_a_number_of_devices(partita, programs):
    options = ["--devices=8", "--hardware=tpu_v5e", "--budget=20", "--manual=x:0@x"]
    result = partita("plan", f"{programs}:double", *options)
    assert (result.code, result.err) == (0, "")
    title, table = result.out.index(" on mesh x="), result.out.index("\nMeshes of 8 devices\n")
    assert title < table < result.out.index("Collectives")


def test_what_a_mesh_that_is_chosen_does_is_explained(partita, programs):
    options = ["--devices=4", "--hardware=tpu_v5e", "--budget=20", "--manual=x:0@x"]
    result = partita("explain", f"{programs}:double", "x", *options)
    assert result.code == 0
    assert "x" in result.out and "ManualPartition(x: 0 -> x)" in result.out


def test_a_plan_for_a_mesh_that_is_chosen_is_verified(partita, programs):
    options = ["--devices=4", "--hardware=tpu_v5e", "--budget=20"]
    result = partita("verify", f"{programs}:double", *options)
    assert (result.code, "As predicted." in result.out) == (0, True)


def test_a_mesh_that_is_chosen_as_json(partita, programs):
    options = ["--devices=4", "--hardware=tpu_v5e", "--budget=20", "--json"]
    made = json.loads(partita("plan", f"{programs}:double", *options).out)
    assert made["mesh"] == made["meshes"][0]["mesh"] == {"x": 4}
    assert [each["chosen"] for each in made["meshes"]] == [True, False]


def test_a_plan_as_json(plan):
    result = plan("--manual", "w:1@data", "--json")
    assert result.code == 0
    made = json.loads(result.out)
    assert made["mesh"] == {"data": 8}
    assert made["hardware"] == "tpu_v5e"
    assert [entry["name"] for entry in made["history"]] == ["ManualPartition(w: 1 -> data)"]
    assert {a["name"]: a["sharding"] for a in made["arguments"]} == {"x": [], "w": [None, "data"]}
    assert made["estimate"]["step_time"] > 0
    assert made["estimate"]["capacity"] == cost.load("tpu_v5e").memory.value
    assert made["estimate"]["fits"] is True


HLO = """func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}"""
ROWS = ("--mesh=data=8", "--hardware=tpu_v5e", "--axes=none", "--manual=arg0:0@data")


def test_a_stablehlo_file_is_planned_and_written(partita, tmp_path):
    path = tmp_path / "product.mlir"
    path.write_text(HLO)
    outputs = [tmp_path / name for name in ("partitioned.mlir", "annotated.mlirbc")]
    options = [f"--{output.stem}={output}" for output in outputs]
    result = partita("plan", path, *ROWS, *options, "--json")
    assert (result.code, result.err) == (0, "")
    made = json.loads(result.out)
    assert made["program"] == "product"
    assert {a["name"]: a["sharding"] for a in made["arguments"]} == {"arg0": ["data"], "arg1": []}
    assert "sdy.manual_computation" in outputs[0].read_text()
    assert outputs[1].read_bytes().startswith(b"ML\xefR")
    assert sorted(tmp_path.iterdir()) == sorted([path, *outputs])


def test_constants_of_a_file_are_hoisted(partita, tmp_path):
    values = ", ".join(map(str, range(512)))
    path = tmp_path / "table.mlir"
    path.write_text(
        f"""func.func @main(%x: tensor<512xi32>) -> tensor<512xi32> {{
          %c = stablehlo.constant dense<[{values}]> : tensor<512xi32>
          %0 = stablehlo.add %x, %c : tensor<512xi32>
          return %0 : tensor<512xi32> }}"""
    )
    for option, names in ((), ["arg0"]), (("--hoist-constants",), ["arg0", "constants[0]"]):
        result = partita("plan", path, *ROWS, *option, "--json")
        assert [a["name"] for a in json.loads(result.out)["arguments"]] == names


def test_files_that_cannot_be_read_or_written_are_one_message(partita, tmp_path):
    path = tmp_path / "product.mlir"
    path.write_text(HLO[:150])
    cases = [
        (path, (), "not a readable StableHLO module"),
        (tmp_path / "none.mlirbc", (), "No such file or directory"),
        (tmp_path, (), "is a directory"),
        (path, ("--annotated=a.txt",), "expected a name that ends in .mlir"),
    ]
    for model, options, reason in cases:
        result = partita("plan", model, *ROWS, *options)
        assert result.code == 2
        assert result.err.startswith("error: ")
        assert reason in result.err
        assert "Traceback" not in result.err
        assert result.out == ""


def test_manual_tactics_are_applied_in_order(plan):
    result = plan(
        "--json",
        "--manual=x:0@data",
        "--manual=w:replicate@model",
        "--manual=w:-1@model",
        mesh="data=4,model=2",
    )
    made = json.loads(result.out)
    assert [entry["name"] for entry in made["history"]] == [
        "ManualPartition(x: 0 -> data)",
        "ManualPartition(w: replicate -> model)",
        "ManualPartition(w: -1 -> model)",
    ]
    assert {a["name"]: a["sharding"] for a in made["arguments"]} == {"x": ["data"], "w": []}
    assert "pinned along model" in made["history"][2]["refused"][0]


def test_a_search_on_some_axes(plan):
    result = plan("--json", "--budget=20", "--seed=3", mesh="data=4,model=2", axes="model")
    (entry,) = json.loads(result.out)["history"]
    assert entry["name"] == "AutomaticPartition(model)"
    assert "data" not in json.dumps(entry["tiled"])
    assert [axis["name"] for axis in json.loads(result.out)["idle_axes"]][:1] == ["data"]


def test_a_search_on_all_axes_is_the_default(plan):
    result = plan("--json", "--budget=20", axes=None)
    (entry,) = json.loads(result.out)["history"]
    assert entry["name"] == "AutomaticPartition(all axes)"


def test_the_search_algorithm_has_a_name(plan):
    result = plan("--json", "--budget=20", "--search=refine", axes=None)
    (entry,) = json.loads(result.out)["history"]
    assert entry["name"] == "AutomaticPartition(all axes, search=refine)"
    result = plan("--search=refin", axes=None)
    assert result.code == 2
    assert "one of beam, exhaustive, greedy, iterated, mcts" in " ".join(result.err.split())


def test_memory(plan):
    result = plan("--memory=8KiB", "--json")
    assert json.loads(result.out)["estimate"]["capacity"] == 8192
    assert not json.loads(result.out)["estimate"]["fits"]
    assert "DOES NOT FIT" in plan("--memory=8KiB").out


UNEVEN = {"function": "double", "mesh": "data=3"}


@pytest.mark.parametrize("option", [(), ("--json",)])
@pytest.mark.filterwarnings("ignore:.* examples, which .* does not divide")
def test_a_manual_tactic_that_tiles_nothing_ends_with_a_message_and_code_1(plan, option):
    result = plan("--manual=x:0@data", *option, **UNEVEN)
    assert result.code == 1
    reason = "x dimension 0: 64 is not divisible by data=3"
    assert result.err == f"error: ManualPartition(x: 0 -> data) tiled nothing: {reason}\n"
    assert "double" in result.out or "<lambda>" in result.out  # the plan is there all the same


@pytest.mark.parametrize(
    "options",
    [
        ("--manual=x:0@data",),
        ("--manual=x:0@data", "--manual=x:0@data"),  # the second finds it as it should be
        ("--manual=w:replicate@data",),
        ("--manual=*:1@data",),  # x is split, w is not
    ],
)
def test_a_manual_tactic_that_tiles_something_is_none(plan, options):
    result = plan(*options)
    assert (result.code, result.err) == (0, "")


def test_the_version(partita):
    result = partita("--version")
    assert (result.code, result.out, result.err) == (0, f"partita {pt.__version__}\n", "")


def test_the_models(partita):
    result = partita("models")
    assert (result.code, result.err) == (0, "")
    assert all(f"{name} " in result.out or f"{name}\n" in result.out for name in models.names())
    found = json.loads(partita("models", "--json").out)
    assert [entry["family"] for entry in found] == list(models.FAMILIES)
    assert [name for entry in found for name in entry["presets"]] == list(models.names())
    assert all(entry["description"] for entry in found)


def test_lines_are_not_wrapped_where_there_is_no_terminal(partita, plan, monkeypatch):
    wide = plan("--manual", "x:0@data").out
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(monkeypatch, "setenv", lambda *args: None)
    assert plan("--manual", "x:0@data").out == wide


def test_a_hardware_file(plan, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((FOLDER / "cpu.toml").read_text())
    assert "(8 x mine)" in plan(hardware=path).out


def test_a_built_in_model(partita):
    result = partita("plan", "mlp", "--mesh=data=8", "--hardware=cpu", "--axes=none", "--json")
    assert result.code == 0
    names = [a["name"] for a in json.loads(result.out)["arguments"]]
    assert any("state['params']" in name for name in names)


def test_equal_seeds_print_equal_plans(plan):
    first, second = (plan("--budget=30", "--seed=5", axes=None).out for _ in range(2))
    assert first == second


# ------------------------------------------------------------------------------------ hardware


def test_the_device_types(partita):
    result = partita("hardware")
    assert result.code == 0
    assert all(kind in result.out for kind in cost.device_types())


def test_one_device_type_with_its_sources(partita):
    result = partita("hardware", "tpu_v5e")
    assert result.out.startswith(f"tpu_v5e: {cost.load('tpu_v5e').description}")
    for entry in entries(cost.load("tpu_v5e")):
        assert entry.source in result.out
    for told in (
        "memory: 15.75 GiB",
        "memory bandwidth: 819 GB/s",
        "peak flops, bf16: 197 TFLOP/s",
    ):
        assert told in result.out
    for told in ("networks, ici, latency: 1 us", "efficiency, matmul: 97%", "prefetch: 2 products"):
        assert told in result.out


@pytest.mark.parametrize(("args", "names"), [([], cost.device_types()), (["h100"], ("h100",))])
def test_hardware_as_json(partita, args, names):
    result = partita("hardware", *args, "--json")
    assert [kind["name"] for kind in json.loads(result.out)] == list(names)


def test_calibrating_writes_a_file_that_plans_can_be_priced_with(partita, plan, tmp_path):
    path = tmp_path / "mine.toml"
    options = ("--platform=cpu", "--seconds=0.01", "--like=cpu")
    result = partita("calibrate", str(path), *options)
    assert result.code == 0
    assert result.out.startswith("mine: cpu, measured by partita calibrate")
    assert "(8 x mine)" in plan(hardware=path).out


# -------------------------------------------------------------------------------------- errors

ERRORS = [
    # arguments (FILE stands for the user's programs), a part of the message
    ("plan nonsense --mesh=data=8 --hardware=cpu", "no built-in model 'nonsense'"),
    ("plan mpl --mesh=data=8 --hardware=cpu", "did you mean 'mlp'"),
    ("plan FILE --mesh=data=8 --hardware=cpu", "names no function; expected path/to/file.py"),
    (
        "plan FILE:doubel --mesh=data=8 --hardware=cpu",
        "no function 'doubel'; did you mean 'double'",
    ),
    ("plan FILE:not_callable --mesh=data=8 --hardware=cpu", "has no function 'not_callable'"),
    ("plan FILE:fails --mesh=data=8 --hardware=cpu", "fails: RuntimeError: no data here"),
    ("plan FILE:wrong --mesh=data=8 --hardware=cpu", "returned int; expected (fn, args)"),
    ("plan FILE:untraceable --mesh=data=8 --hardware=cpu", "JAX cannot trace <lambda>"),
    ("plan FILE:asks --mesh=data=8 --hardware=cpu", "calls back to the host"),
    ("plan none.py:f --mesh=data=8 --hardware=cpu", "there is no file 'none.py'"),
    ("plan FILE:double --mesh=data --hardware=cpu", "cannot read 'data' in mesh"),
    ("plan FILE:double --mesh=data=8,data=2 --hardware=cpu", "names an axis twice"),
    ("plan FILE:double --mesh=data=8 --hardware=gpu", "unknown device type 'gpu'"),
    ("plan FILE:double --mesh=data=8 --hardware=none.toml", "none.toml"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --axes=dat", "has no axis 'dat'"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --memory=big", 'cannot read memory="big"'),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --memory=1.2.3", "cannot read memory"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --memory=0", 'memory="0": expected bytes'),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --memory=-1", 'cannot read memory="-1"'),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --memory=99999999TiB", "from 1 to"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --budget=0", "budget=0"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --axes=data,", "expected names of mesh axes"),
    ("plan FILE:double --mesh=data=99999999 --hardware=cpu", "more than 1,048,576 devices"),
    (f"plan FILE:double --mesh=data={'9' * 5000} --hardware=cpu", "cannot read 'data=99"),
    (
        f"plan FILE:double --mesh=data=8 --hardware=cpu --manual=x:{'9' * 5000}@data",
        "cannot read --manual",
    ),
    ("plan FILE:double --mesh=data=8 --hardware=/dev/zero", "unknown device type '/dev/zero'"),
    ("plan /dev/zero --mesh=data=8 --hardware=cpu", "it is a device, not a regular file"),
    ("show /dev/zero FILE:double", "it is a device, not a regular file"),
    ("explain FILE:double x --mesh=data=8 --hardware=cpu --alternatives=-1", "alternatives=-1"),
    ("verify FILE:double --mesh=a=100000 --hardware=cpu", "100000 host devices are too many, 2048"),
    ("calibrate x.toml --seconds=nan", "seconds=nan: expected a time above 0"),
    ("calibrate x.toml --seconds=-1", "seconds=-1.0: expected a time above 0"),
    ("calibrate x.json", "a hardware file ends in .toml"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --manual=x", "cannot read --manual 'x'"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --manual=x:9@data", "no dimension 9"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --manual=y:0@data", "'y' matches no argument"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --manual=x:0@model", "no axis 'model'"),
    ("hardware gpu", "unknown device type 'gpu'"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --confirm=3", "--confirm takes --topology"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --topology=host", "are for --confirm"),
    (
        "plan FILE:double --mesh=data=8 --hardware=cpu --confirm=3 --topology=nowhere",
        "unknown topology 'nowhere'",
    ),
    (
        "plan FILE:double --mesh=data=8 --hardware=cpu --confirm=0 --topology=host",
        "count=0: expected an integer of at least 1",
    ),
    (
        "plan FILE:double --mesh=data=8 --hardware=cpu --confirm=3 --topology=host --axes=none",
        "the plan has no search in its history",
    ),
    (
        "plan FILE:double --mesh=data=8 --hardware=cpu --confirm=3 --topology=host",
        "nothing tells the time of what is compiled for host devices",
    ),
    (
        "plan FILE:double --hardware=cpu --confirm=3 --topology=host --sweep mesh=data=8",
        "--confirm is for one plan; leave --sweep out",
    ),
    # told by the command line itself
    ("plan FILE:double --mesh=data=8", "--hardware"),
    ("plan FILE:double --hardware=cpu", "give one of them: --mesh, such as data=8, or --devices"),
    ("plan FILE:double --hardware=cpu --mesh=data=8 --devices=8", "give either, not both: --mesh"),
    ("explain FILE:double x --hardware=cpu", "give one of them: --mesh, such as data=8"),
    ("verify FILE:double --hardware=cpu", "give one of them: --mesh, such as data=8"),
    ("plan FILE:double --hardware=cpu --devices=0", "devices=0: expected an integer of at least 1"),
    ("plan FILE:double --hardware=cpu --devices=5000", "joins up to 4096; give fewer"),
    ("plan FILE:double --hardware=cpu --devices=many", "--devices"),
    ("plan FILE:double --hardware=cpu --devices=8 --axes=data", "the axes x, y, z; name these"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --budget=many", "--budget"),
    ("plan FILE:double --mesh=data=8 --hardware=cpu --nonsense", "--nonsense"),
    ("plam", "plam"),
]


@pytest.mark.parametrize(("command", "message"), ERRORS)
def test_an_error_is_one_message_on_stderr_and_code_2(partita, programs, command, message):
    result = partita(*(arg.replace("FILE", str(programs)) for arg in command.split()))
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err
    assert "Traceback" not in result.err and "╭" not in result.err


def test_errors_of_the_system_with_files_are_told_as_others_are(partita, monkeypatch):
    def denied(name):
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr("partita.models.load", denied)
    result = partita("plan", "secret.mlir", "--mesh=data=8", "--hardware=cpu")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: Permission denied: 'secret.mlir'\n"


def test_a_platform_that_is_not_there(tmp_path):
    command = [sys.executable, "-m", "partita.cli", "calibrate", str(tmp_path / "x.toml")]
    done = subprocess.run([*command, "--platform=nope"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: JAX finds no devices of --platform nope: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_that_is_full(programs):
    command = [sys.executable, "-m", "partita.cli", "hardware"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device\n"


def test_a_reader_that_has_seen_enough(programs):
    command = [sys.executable, "-m", "partita.cli", "hardware", "tpu_v5e"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# ------------------------------------------------------------------------------------- Ctrl-C


@pytest.fixture
def interrupted(monkeypatch):
    """A search that is interrupted when it has seen three plans, and then goes on as it was."""

    def search(problem, budget, seed, progress):
        progress(0, problem.start)
        for number, move in enumerate(problem.moves * 100):
            problem.step(problem.start, move)
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            progress(problem.evaluations, problem.best)
        raise AssertionError("it was not stopped")

    monkeypatch.setitem(ALGORITHMS, "interrupted", search)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_search_gives_the_best_plan_so_far(partita, programs, interrupted):
    options = ["--mesh=data=8", "--hardware=tpu_v5e", "--search=interrupted"]
    before = signal.getsignal(signal.SIGINT)
    result = partita("plan", f"{programs}:double", *options)
    assert result.code == 0
    assert result.err == "interrupted: this is the best plan so far\n"
    assert re.search(
        r"warning interrupted: this is the best of \d plans evaluated so far", result.out
    )
    assert "Tactics" in result.out and "step" in result.out
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_search_of_a_mesh_gives_the_best_so_far(partita, programs, interrupted):
    options = ["--devices=8", "--hardware=tpu_v5e", "--search=interrupted"]
    result = partita("plan", f"{programs}:double", *options)
    assert result.code == 0
    assert result.err == "interrupted: this is the best plan so far\n"
    assert "Meshes of 8 devices" in result.out


def test_ctrl_c_in_a_search_raises_in_python(interrupted):
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    tactic = pt.AutomaticPartition(search="interrupted")
    with pytest.raises(KeyboardInterrupt):
        pt.plan(lambda x: x @ x, x, mesh="data=8", hardware="tpu_v5e", tactics=tactic)


def test_ctrl_c_before_a_search_ends_the_command(partita, programs, monkeypatch):
    def stop(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.models.load", stop)
    assert partita("plan", f"{programs}:double", "--mesh=data=8", "--hardware=cpu").code == 130


def test_without_arguments_there_is_help(partita):
    result = partita()
    assert "plan" in result.out + result.err and "hardware" in result.out + result.err


COMMANDS = get_command(cli.app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_prints_what_is_in_brackets(partita, name):
    """And does not take it for markup."""
    written = " ".join([COMMANDS[name].help, *(p.help or "" for p in COMMANDS[name].params)])
    printed = partita(name, "--help").out
    for bracketed in re.findall(r"\w*\\?\[\w+\]", written):
        assert bracketed.replace("\\", "") in printed


@pytest.mark.parametrize("name", ["explain", "verify"])
def test_what_is_planned_is_said_by_the_same_options(name):
    """Alike in all: the name, the type, the default and the help."""

    def told(param):
        return param.name, type(param), param.opts, str(param.default), param.help

    shared = [told(param) for param in COMMANDS["plan"].params][: len(fields(Planning))]
    assert [each for each in shared if each not in map(told, COMMANDS[name].params)] == []


def test_a_sweep_takes_its_search_from_the_options(partita, programs):
    swept = ["--mesh=data=8", "--hardware=cpu", "--budget=5", "--axes=none", "--json"]
    result = partita("plan", f"{programs}:double", *swept, "--sweep", "tactics=search none")
    assert result.code == 0
    assert len(json.loads(result.out)["plans"]) == 2


def test_help_names_the_extra_of_the_tpu_compiler(partita):
    assert "pip install 'partita[tpu]'" in " ".join(partita("verify", "--help").out.split())


def test_a_file_that_cannot_be_imported(partita, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name\n")
    result = partita("plan", f"{path}:f", "--mesh=data=8", "--hardware=cpu")
    assert result.code == 2
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in " ".join(
        result.err.split()
    )


DATA_CLASSES = """
from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass
class Config:
    size: int = 8


def scaled():
    config = Config()
    return (lambda x: config.size * x, (jax.ShapeDtypeStruct((config.size,), jnp.float32),))
"""


def test_a_file_may_define_data_classes(partita, tmp_path):
    path = tmp_path / "classes.py"
    path.write_text(DATA_CLASSES)
    result = partita("plan", f"{path}:scaled", "--mesh=data=8", "--hardware=cpu", "--axes=none")
    assert (result.code, result.err) == (0, "")


def test_the_installed_command(programs):
    command = Path(sys.executable).with_name("partita")
    arguments = ["plan", f"{programs}:double", "--mesh=data=2", "--hardware=cpu"]
    done = subprocess.run(
        [command, *arguments, "--manual=x:0@dat"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: mesh data=2 has no axis 'dat'")


# ------------------------------------------------------------------------------------- explain


@pytest.fixture
def explain(partita, programs):
    """Explains the user's `double`, its contraction split by hand."""

    def run(*args):
        fixed = ["--mesh=data=8", "--hardware=tpu_v5e", "--manual=x:1@data", "--axes=none"]
        return partita("explain", f"{programs}:double", *fixed, *args)

    return run


def test_a_name_is_explained(explain):
    result = explain("w")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("w : f32[32,16] (data, -), f32[4,16] a device\n")
    assert "put it at x dim 1, and it propagates along\n      dot_general at" in result.out


def test_names_and_collectives_are_explained_in_order(explain):
    result = explain("x", "0", "--collectives", "--json")
    entries = json.loads(result.out)
    assert [entry.get("name", entry.get("index")) for entry in entries] == ["x", 0, 0]
    assert entries[1]["kind"] == "all_reduce"
    assert entries[1]["alternatives"][0]["change"] == "without x -> data in history[0]"


def test_how_many_alternatives_are_priced(explain):
    (entry,) = json.loads(explain("0", "--alternatives=0", "--json").out)
    assert entry["alternatives"] == [] and entry["untried"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["y"], "'y' matches no argument"),
        (["3"], "there is no collective 3; the plan has 1, numbered 0 to 0"),
        ([], "say what to explain"),
    ],
)
def test_what_cannot_be_explained(explain, arguments, message):
    result = explain(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


# ------------------------------------------------------------------------------------ kept plans


def test_a_plan_is_written_and_shown_again(partita, plan, programs, tmp_path):
    file = tmp_path / "plan.json"
    made = plan("--manual", "x:0@data", "--save", file)
    assert made.code == 0
    shown = partita("show", file, f"{programs}:double")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == made.out


def test_a_kept_plan_as_json_and_as_a_program(partita, plan, programs, tmp_path):
    file, program = tmp_path / "plan.json", tmp_path / "double.mlir"
    made = plan("--manual", "x:0@data", "--save", file, "--json")
    shown = partita("show", file, f"{programs}:double", "--json", "--partitioned", program)
    assert json.loads(shown.out) == json.loads(made.out)
    assert "sdy.manual_computation" in program.read_text()


def test_a_kept_plan_for_another_program(partita, plan, programs, tmp_path):
    file = tmp_path / "plan.json"
    plan("--save", file)
    shown = partita("show", file, "mlp")
    assert shown.code == 2
    assert shown.err.startswith(f"error: the plan in '{file}' is for another program than")
    assert "argument w (f32[" in shown.err and "is gone" in shown.err


def test_a_plan_that_cannot_be_written(plan, tmp_path):
    result = plan("--save", tmp_path / "nowhere" / "plan.json")
    assert result.code == 2
    assert "cannot write" in result.err


# -------------------------------------------------------------------------------- verify

DATA = ("mlp", "--mesh", "data=4", "--manual", "batch*:0@data", "--axes", "none")
DATA += ("--hardware", "cpu")


def test_verify_prints_predicted_beside_compiled(partita):
    result = partita("verify", *DATA)
    assert result.code == 0, result.err
    assert "for host devices" in result.out and "As predicted." in result.out


def test_verify_as_json_has_an_entry_for_each_form(partita):
    result = partita("verify", *DATA, "--form", "both", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert [each["form"] for each in found] == ["partitioned", "annotated"]
    assert all(each["passed"] for each in found)


DOUBLE = ("--mesh=x=4", "--hardware=cpu", "--manual=x:0@x", "--axes=none", "--numbers")


def test_verify_numbers_runs_the_plan_and_the_original(partita, programs, monkeypatch):
    result = partita("verify", f"{programs}:double", *DOUBLE, "--seed", "3")
    assert result.code == 0, result.err
    assert "With random arguments of seed 3." in result.out
    assert result.out.rstrip().endswith("The same numbers, but for rounding.")
    found = json.loads(partita("verify", f"{programs}:double", *DOUBLE, "--json").out)
    assert found["ok"] and found["results"][0]["difference"] == 0
    monkeypatch.setattr("partita.verify.numbers.distance", lambda ours, theirs: 1.0)
    monkeypatch.setattr("partita.verify.number_check.SHAKEN", 0.5)
    assert partita("verify", f"{programs}:double", *DOUBLE).code == 1


def test_verify_numbers_is_for_host_devices(partita, programs):
    result = partita("verify", f"{programs}:double", *DOUBLE, "--topology", "v5e:2x2")
    assert result.code == 2
    assert "--numbers runs the partitioned form on host devices" in result.err


GATHER = HloCollective("all_gather", 8, ((0, 1, 2, 3),))


def test_verify_exits_with_1_where_the_prediction_does_not_hold(partita, monkeypatch):
    monkeypatch.setattr(
        "partita.verify.check.side_by_side",
        lambda collectives, mesh, *_, **__: Comparison(mesh, Counter(), Counter([GATHER])),
    )
    result = partita("verify", *DATA, "--json")
    assert result.code == 1
    assert json.loads(result.out)[0]["problems"]


def test_verify_brings_its_own_host_devices(tmp_path):
    """In a process of its own, where JAX has made no devices yet."""
    file = tmp_path / "programs.py"
    file.write_text(PROGRAMS)
    command = [sys.executable, "-m", "partita.cli", "verify", f"{file}:double", "--mesh", "x=16"]
    command += ["--hardware", "cpu", "--manual", "x:0@x", "--axes", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_verify_with_an_unknown_form(partita):
    result = partita("verify", *DATA, "--form", "whole")
    assert result.code == 2
    assert "no form 'whole'; expected partitioned, annotated, both" in result.err


def test_verify_for_a_topology_of_no_backend(partita):
    result = partita("verify", *DATA, "--topology", "h900:2x8")
    assert result.code == 2
    assert "unknown topology 'h900:2x8'; expected a GPU" in result.err


def test_verify_for_host_devices_by_name(partita):
    assert "for host devices" in partita("verify", *DATA, "--topology", "host").out


def test_verify_without_the_tpu_compiler(partita, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = partita("verify", *DATA[:-1], "tpu_v5e", "--topology", "v5e:2x2")
    assert result.code == 2
    assert "pip install 'partita[tpu]'" in result.err
