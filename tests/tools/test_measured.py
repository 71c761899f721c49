"""`python -m tools.measured`: a model runs on the device at hand, beside what is predicted."""

from __future__ import annotations

import json

from tools.accuracy.cells import Sized
from typer.testing import CliRunner

from tools import measured


def test_a_model_is_predicted_and_run(monkeypatch, tmp_path):
    monkeypatch.setattr(measured, "MODELS", {"gpt": Sized("gpt-tiny", {})})
    results = tmp_path / "measured.jsonl"
    done = CliRunner().invoke(measured.app, ["gpt", "--hardware", "cpu", "--results", str(results)])
    assert done.exit_code == 0, done.output
    (found,) = map(json.loads, results.read_text("utf-8").splitlines())
    assert found["model"] == "gpt" and found["hardware"] == "cpu"
    ratio = found["predicted"] / found["seconds"]
    assert f"{ratio:.2f}" in done.output


def test_a_model_that_there_is_not_is_named():
    done = CliRunner().invoke(measured.app, ["gtp"])
    assert done.exit_code == 2 and "there is no 'gtp'" in done.output
