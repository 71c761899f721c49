"""A device type is one file: with that in the folder, everything knows it."""

from __future__ import annotations

import json
import shutil

import jax
import pytest

import partita as pt
from partita import cli
from partita.cost import device_type_of, device_types, load
from partita.cost.devices import files

BETTER = """\
description = "A chip of next year"
device_kind = "Better Chip"
memory = { value = 34_359_738_368, source = "the datasheet: 32 GiB" }
memory_bandwidth = { value = 4e12, source = "the datasheet: 4 TB/s" }
peak_flops.bf16 = { value = 2e15, source = "the datasheet: 2 PFLOP/s" }
efficiency.matmul = { value = 0.9, source = "measured" }
efficiency.memory = { value = 0.8, source = "measured" }
regather_window = { value = 30, source = "assumption: it forgets early" }

[[networks]]
name = "weave"
topology = "torus"
size = 64
bandwidth = { value = 2e11, source = "the datasheet: 200 GB/s" }
latency = { value = 1e-6, source = "assumption: a hop" }
"""


@pytest.fixture(autouse=True)
def better(tmp_path, monkeypatch):
    """The folder of device types, with one file more."""
    folder = shutil.copytree(files.FOLDER, tmp_path / "device_types")
    (folder / "better.toml").write_text(BETTER)
    monkeypatch.setattr(files, "FOLDER", folder)


@pytest.fixture
def hardware(capsys, monkeypatch):
    """What `partita hardware ARGUMENTS` prints."""

    def hardware(*arguments):
        monkeypatch.setattr("sys.argv", ["partita", "hardware", *arguments])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
        return capsys.readouterr().out

    return hardware


def test_it_is_listed(hardware):
    assert "better" in device_types()
    (line,) = (line for line in hardware().splitlines() if line.startswith("better"))
    assert " ".join(line.split()) == "better 32 GiB 4000 GB/s 2000 TFLOP/s weave 200 GB/s"


def test_it_is_printed_with_its_sources(hardware):
    out = hardware("better")
    assert out.startswith("better: A chip of next year\n")
    for told in (
        "memory: 32 GiB\n    the datasheet: 32 GiB",
        "networks, weave, bandwidth: 200 GB/s\n    the datasheet: 200 GB/s",
        "regather window: 30 operations\n    assumption: it forgets early",
    ):
        assert told in out
    (data,) = json.loads(hardware("better", "--json"))
    assert data["name"] == "better" and data["memory"]["value"] == 2**35


def test_it_is_found_by_what_jax_calls_it():
    assert device_type_of("Better Chip (rev. 2)") == "better"
    assert device_type_of("TPU v5 lite") == "tpu_v5e"


def test_plans_are_made_for_it():
    x, w = (jax.ShapeDtypeStruct((1024, 1024), "bfloat16") for _ in range(2))
    plan = pt.plan(
        lambda x, w: x @ w,
        x,
        w,
        mesh="data=4",
        hardware="better",
        tactics=[pt.ManualPartition({"x": 0}, "data")],
    )
    assert plan.hardware == load("better") and plan.estimate.capacity == 2**35
    moved = 2 * (256 * 1024 + 1024 * 1024 + 256 * 1024)
    assert plan.estimate.compute_time == pytest.approx(moved / (0.8 * 4e12))
