"""A profile of a real run on host devices, beside the prediction."""

from __future__ import annotations

import gzip
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import planner
from partita.text import relative

profiling = importlib.import_module("partita.verify.profile")

plan = planner(mesh="data=4,model=2", hardware="cpu")
RUNS = 3


def step(w, x):
    y = x @ w
    z = jnp.tanh(y)
    return z @ w.T


ARGS = (np.ones((256, 128), np.float32), np.ones((64, 256), np.float32))


@pytest.fixture(scope="module")
def made():
    tactics = [pt.ManualPartition({"x": 0}, "data"), pt.ManualPartition({"w": 1}, "model")]
    return plan(step, *ARGS, tactics=tactics)


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    run, args = made.jit(), made.shard(*ARGS)
    run(*args).block_until_ready()
    with jax.profiler.trace(str(folder)):
        for _ in range(RUNS):
            run(*args).block_until_ready()
    return folder


@pytest.fixture(scope="module")
def profile(made, folder):
    return made.verify().profile(folder)


def test_operations_are_matched_by_name_and_line(profile):
    first = step.__code__.co_firstlineno
    found = {(each.name, each.source) for each in profile.operations}
    here = relative(__file__)
    assert ("dot_general", f"{here}:{first + 1}") in found
    assert ("all_reduce", "") in found
    assert all(each.predicted > 0 and each.measured > 0 for each in profile.operations)


def test_times_are_per_step_and_device(profile, folder):
    (path,) = folder.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    dots = [e["dur"] for e in events if e.get("args", {}).get("hlo_module") == profile.module]
    assert profile.runs == 8 * RUNS
    total = sum(each.measured for each in profile.operations) + profile.measured_rest
    assert total == pytest.approx(1e-6 * sum(dots) / profile.runs)


def test_it_prints_what_did_not_match(profile):
    assert "not matched" in str(profile) and "predicted/measured" in str(profile)


def test_a_folder_without_a_trace_is_an_error(made, tmp_path):
    with pytest.raises(pt.FileError, match=r"jax\.profiler\.trace"):
        made.verify().profile(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"traceEvents": 5}',
        b'{"traceEvents": [{"ph": "X", "dur": "long"}]}',
        b'{"traceEvents": [{"ph": "X", "args": {"hlo_op": []}}]}',
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b" " * 2_000_000,
        None,
    ],
    ids=["cut", "list", "number", "words", "types", "deep list", "deep object", "large", "no gzip"],
)
def test_a_trace_that_cannot_be_read_is_an_error(made, tmp_path, monkeypatch, data):
    monkeypatch.setattr(profiling, "MOST_BYTES", 1_000_000)
    packed = b"no gzip" if data is None else gzip.compress(data)
    (tmp_path / "a.trace.json.gz").write_bytes(packed)
    with pytest.raises(pt.FileError, match="is no trace that can be read"):
        made.verify().profile(tmp_path)


def test_a_profile_of_another_program_is_an_error(folder):
    def other(x):
        return x + 1

    with pytest.raises(pt.FileError, match=r"has no run of jit_other; it has jit_step"):
        plan(other, ARGS[0]).verify().profile(folder)
