"""The schedules of the PartIR paper: arithmetic, prediction and compiled program agree."""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path

import jax
import pytest
from tools.paper import Plans, by_arithmetic, compile_row, count, reasons, view
from tools.partir import ROWS, SUBJECTS, evaluate

from tools import paper

PAGE = Path(__file__).parents[2] / "docs" / "partir.md"


@functools.cache
def plans(name, small=False):
    """The plans of a subject, traced once for all tests."""
    return Plans(SUBJECTS[name], small)


def label(row):
    return f"{row.subject} {row.schedule}"


# What `tests/whole/test_families.py` compiles under the same strategies.
COMPILED_ELSEWHERE = ("UNet BP", "UNet BP+Z3")


def rows_of(name):
    return [row for row in ROWS if row.subject == name]


# One test for a model, which is traced once for all of its rows.
@pytest.mark.parametrize("name", ["T32", "UNet", "GNS"])
def test_small_rows_are_predicted_and_compiled_as_arithmetic_says(name):
    for row in rows_of(name):
        plan = plans(name, small=True).of(row)
        text = None if label(row) in COMPILED_ELSEWHERE else compile_row(plan)
        lines = count(row, plan, small=True, text=text)
        assert all(line.equal for line in lines), rendered(lines)


@pytest.mark.parametrize("name", ["IT32", "IT32, multi-query"])
def test_32_layers_in_loops_are_predicted_and_compiled_as_arithmetic_says(name):
    assert SUBJECTS[name].numbers()["L"] == 32
    for row in rows_of(name):
        plan = plans(name).of(row)
        assert count(row, plan, text=compile_row(plan)) == by_arithmetic(row)


# `make paper-table` compiles them as well.
def test_32_unrolled_layers_are_predicted_as_arithmetic_says():
    assert SUBJECTS["T32"].numbers() == {"L": 32, "P": 290}
    once = Plans(SUBJECTS["T32"])
    for row in rows_of("T32"):
        lines = count(row, once.of(row))
        assert all(line.equal for line in lines), rendered(lines)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", ["T32", "UNet"])
def test_arithmetic_counts_the_parameter_tensors_that_there_are(name, small):
    state, _ = SUBJECTS[name].model(small).args
    assert len(jax.tree.leaves(state["params"])) == SUBJECTS[name].numbers(small)["P"]


@pytest.mark.parametrize("name", SUBJECTS)
def test_tactics_split_all_that_they_name_but_a_bias_of_three_channels(name):
    for row in rows_of(name):
        history = plans(name, small=True).of(row).history
        assert [entry.name for entry in history if not entry.tiled] == []
        refused = [refusal.what for entry in history for refusal in entry.refused]
        assert all(what.endswith("['conv_out']['b'] dimension 0") for what in refused), refused
        assert bool(refused) == (name == "UNet" and row.schedule != "BP")


def test_a_formula_is_a_sum_of_products():
    assert evaluate("2 L N + P + 1", {"L": 3, "N": 5, "P": 100}) == 131


def test_a_count_that_differs_is_seen():
    row = next(row for row in ROWS if label(row) == "IT32 MP")
    plan = plans("IT32", small=True).of(row)
    text = compile_row(plan)
    (one, *_) = re.findall(r"^.* all-reduce\(.*$", text, re.M)
    lines = count(row, plan, small=True, text=text.replace(one, ""))
    assert [line.compiled for line in lines if not line.equal] == [3, 30]
    assert "<- differs" in rendered(lines)
    # Of one kind and number, but not between the same devices.
    lines = count(row, plan, small=True, text=re.sub(r"replica_groups=\S+,", "", text))
    assert [line.kind for line in lines if not line.equal] == ["other payloads or groups"]


def rendered(lines):
    console = paper.Console(width=paper.WIDTH)
    with console.capture() as capture:
        console.print(view(lines))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_the_page_has_the_table_that_arithmetic_gives_with_the_reasons():
    text = "\n".join(line.rstrip() for line in PAGE.read_text("utf-8").splitlines())
    assert rendered([line for row in ROWS for line in by_arithmetic(row)]) in text
    assert reasons(ROWS) in text


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process: exit code, standard output, standard error."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["paper", *args])
        with pytest.raises(SystemExit) as stop:
            paper.main()
        return (stop.value.code, *capsys.readouterr())

    return run


def test_the_command_prints_a_table_or_json(command):
    code, out, _ = command("IT32", "--small", "--no-compile")
    assert code == 0
    assert re.search(r"BP\+MP +all_reduce +4 +4 +4 +-", out)
    assert "8 host devices: all agree" in out
    code, out, _ = command("IT32", "--small", "--no-compile", "--json")
    made = json.loads(out)
    assert (code, made["passed"]) == (0, True)
    assert made["lines"][-1]["formula"] == "2 L N"


def test_a_difference_is_failure(command, monkeypatch):
    monkeypatch.setattr(paper, "ROWS", [r for r in ROWS if label(r) == "IT32 MP"])
    monkeypatch.setattr(paper, "compile_row", lambda plan: "")
    code, out, _ = command("IT32", "--small")
    assert code == 1
    assert "NOT all agree" in out


def test_a_wrong_model_is_said(command):
    code, out, err = command("T23")
    assert (code, out) == (2, "")
    assert "no model 'T23'; did you mean 'T32' or" in " ".join(err.split())
