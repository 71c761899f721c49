"""`make coverage-models`: what fails a cell, and what the command prints and returns."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys

import jax
import numpy as np
import pytest
from tools.coverage import Subject, compare_numbers

from partita import models
from partita.models.strategies import SCHEDULES
from tools import coverage


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process: exit code, standard output, standard error."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["coverage", *args])
        with pytest.raises(SystemExit) as stop:
            coverage.main()
        return (stop.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def change_models(monkeypatch):
    """Gives every built-in model other fields, or with `fn` another function."""

    def change(fn=None, **fields):
        build = functools.partial(models.build, **fields)

        def built(name, **others):
            model = build(name, **others)
            return dataclasses.replace(model, fn=functools.partial(fn, model.fn)) if fn else model

        monkeypatch.setattr(coverage.models, "build", built)

    return change


def asks(fn, state, batch):
    first = batch["x"][0, 0]
    return fn(state, {**batch, "x": batch["x"] * jax.pure_callback(np.sin, first, first)})


def test_models_that_pass_are_a_table_and_success(command):
    code, out, _ = command("mlp", "--schedule", "fsdp", "--schedule", "data-parallel")
    assert code == 0
    header, *rows = [
        line.split() for line in out.splitlines() if "-parallel" in line or "fsdp" in line
    ]
    assert (header[0], rows[0][0]) == ("mlp", "data-parallel")
    assert [row.count("ok") for row in (header, *rows)] == [2, 2]
    assert "2 of 2 cells pass" in out


def test_a_model_that_cannot_be_traced_fails_all_its_cells(command, change_models):
    change_models(asks)
    code, out, _ = command("mlp")
    assert code == 1
    assert "0 of 4 cells pass" in out
    for schedule in SCHEDULES:
        assert f"FAILED mlp, {schedule}, trace: UnsupportedError: jax.pure_callback at" in out


def test_json_has_every_cell(command, change_models):
    change_models(asks)
    code, out, _ = command("mlp", "--schedule", "fsdp", "--json")
    made = json.loads(out)
    (cell,) = made["cells"]
    assert (code, made["passed"]) == (1, False)
    assert (cell["model"], cell["schedule"], cell["failed"]) == ("mlp", "fsdp", "trace")
    assert "\n" not in cell["reason"]


@pytest.mark.filterwarnings("ignore:.* examples, which .* does not divide")
def test_a_tactic_that_splits_nothing_fails(change_models):
    change_models(batch=3)
    cell = Subject("mlp").check("data-parallel")
    assert (cell.failed, cell.difference) == ("plan", None)
    assert cell.reason == "DataParallel(data) splits nothing"


def test_other_numbers_fail():
    subject = Subject("mlp")
    assert subject.expected is subject.expected  # of this batch, not of the next
    subject.batch = subject.model.example_batch(1)
    cell = subject.check("data-parallel")
    assert cell.failed == "numbers"
    assert cell.reason.endswith(" times the tolerance")
    assert cell.difference > 1


def test_collectives_that_were_not_predicted_fail(monkeypatch):
    real = coverage.compare
    monkeypatch.setattr(coverage, "compare", lambda found, *rest: real(found[1:], *rest))
    cell = Subject("mlp").check("data-parallel")
    assert cell.failed == "collectives"
    assert cell.reason.startswith("all_reduce of ")
    assert "run" not in cell.seconds


def tree(parameter, loss):
    return {"params": {"w": np.float32(parameter)}}, np.float32(loss)


def test_differences_are_in_tolerances():
    # Parameters by half the learning rate, all else by a share of the largest element.
    parameter, loss = compare_numbers(tree([100, 0], [10, 0]), tree([100, 5e-4], [10, 5e-3]))
    assert (parameter, loss) == ("[0]['params']['w']", "[1]")
    found = compare_numbers(tree([100, 0], [10, 0]), tree([100, 5e-4], [10, 5e-3]))
    assert list(found.values()) == pytest.approx([1, 1], rel=1e-3)


def test_of_a_large_array_one_parameter_in_a_thousand_may_move_by_a_whole_step():
    zeros = np.zeros(4000)

    def ratio(*apart):
        moved = zeros.copy()
        moved[: len(apart)] = apart
        return compare_numbers(tree(zeros, 0), tree(moved, 0))["[0]['params']['w']"]

    assert ratio(*[2e-3] * 4) == pytest.approx(1)
    assert ratio(*[2e-3] * 5) == pytest.approx(20)
    assert ratio(*[1e-3] * 4000) == pytest.approx(10)  # as if there had been no step
    assert ratio(3e-3) == pytest.approx(1.5)
    assert ratio(np.nan) == np.inf


@pytest.mark.parametrize("wrong", [np.float32([1, np.nan]), np.float32([1]), np.int32([1, 0])])
def test_no_number_and_another_type_are_infinitely_different(wrong):
    assert compare_numbers([np.float32([1, 0])], [wrong]) == {"[0]": np.inf}


def test_another_nesting_is_no_result():
    with pytest.raises(coverage.MismatchError, match="nested differently"):
        compare_numbers({"a": np.zeros(1)}, {"b": np.zeros(1)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt-tinny"], "no built-in model 'gpt-tinny'; did you mean 'gpt-tiny'"),
        (["--schedule", "fspd"], "no schedule 'fspd'; did you mean 'fsdp'?"),
    ],
)
def test_a_wrong_name_is_said_before_anything_runs(command, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_the_largest_presets_are_measured_and_not_run(command):
    code, out, _ = command("--largest", "mlp", "--json")
    (row,) = json.loads(out)["models"]
    assert (code, row["model"], row["parameters"]) == (0, "mlp", 854336)
    assert row["operations"] > 300
    assert row["import_seconds"] > 0 and row["peak_rss"] > 2**26
