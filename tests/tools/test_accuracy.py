"""The accuracy table: results are kept and loaded again, and what they come to."""

from __future__ import annotations

import dataclasses
import json
import sys

import msgspec
import pytest
from rich.console import Console
from tools.accuracy import run
from tools.accuracy.__main__ import app
from tools.accuracy.cells import (
    CANDIDATES,
    MODELS,
    SCHEDULES,
    SINGLE,
    TOPOLOGIES,
    Cell,
    cells,
    sized,
)
from tools.accuracy.keep import How
from tools.accuracy.run import Result, Times, complete, kept, measure_apart
from tools.accuracy.table import data, markdown, summarise, view
from typer.testing import CliRunner

import partita as pt
from partita.errors import ModelError
from partita.models import build

FIRST, SECOND, *_ = [Cell("gpt", name, "v5e:4x4") for name in SCHEDULES]


def result(cell, predicted=2.0, compiled=2.0, **changes):
    """A result of 100 bytes predicted and compiled, with these step times."""
    made = Result(
        cell,
        run.definition(cell),
        "compiled",
        fits=True,
        predicted_memory=100,
        compiled_memory=100,
        collectives="equal",
        predicted_time=Times(predicted, predicted, predicted),
        compiled_time=Times(compiled, compiled, compiled),
    )
    return dataclasses.replace(made, **changes)


def test_there_is_a_cell_for_every_model_schedule_and_topology():
    every = cells()
    assert (
        len(every)
        == len(set(every))
        == sum(len(each.models) for each in TOPOLOGIES.values()) * len(SCHEDULES)
        + sum(len(each.candidates) for each in TOPOLOGIES.values()) * len(CANDIDATES)
        + sum(len(single.schedules) for single in SINGLE.values())
    )
    assert len(MODELS) >= 8 and len(SCHEDULES) >= 5 and len(TOPOLOGIES) >= 2


@pytest.mark.parametrize("name", [*MODELS, *SINGLE])
def test_the_models_can_be_built(name):
    build(sized(name).preset, **sized(name).changes)


# ------------------------------------------------------------------------------ keeping


@pytest.fixture
def measured(monkeypatch):
    """The cells that are measured, each as if in no time."""
    done = []

    def measure(cell, compiled, limit, how):
        done.append(cell)
        return result(cell, definition=run.definition(cell, how))

    monkeypatch.setattr(run, "measure_apart", measure)
    return done


def test_what_a_file_has_is_not_done_again(measured, tmp_path):
    path = tmp_path / "results.jsonl"
    steps = list(complete([FIRST], path, tmp_path, 1))
    assert steps == [(FIRST, None), (FIRST, result(FIRST))]
    after = [step for step in complete([FIRST, SECOND], path, tmp_path, 1) if step[1] is not None]
    assert after == [(FIRST, result(FIRST)), (SECOND, result(SECOND))]
    assert measured == [FIRST, SECOND]
    assert kept(path) == {FIRST: result(FIRST), SECOND: result(SECOND)}


def test_without_the_combiner_results_are_others(measured, tmp_path):
    path = tmp_path / "results.jsonl"
    list(complete([FIRST], path, tmp_path, 1))
    list(complete([FIRST], path, tmp_path, 1, how=How(combine=False)))
    assert measured == [FIRST, FIRST]
    assert set(kept(path)) == set(kept(path, How(combine=False))) == {FIRST}


@pytest.mark.parametrize(("outcome", "again"), [("timeout", 1), ("failed", 1), ("compiled", 0)])
def test_cells_that_failed_are_done_again_on_request(measured, tmp_path, outcome, again):
    path = tmp_path / "results.jsonl"
    path.write_bytes(msgspec.json.encode(result(FIRST, outcome=outcome)) + b"\n")
    list(complete([FIRST], path, tmp_path, 1))
    assert measured == []
    list(complete([FIRST], path, tmp_path, 1, again=True))
    assert len(measured) == again


def test_results_of_a_cell_that_has_changed_are_left_out(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(msgspec.json.encode(result(FIRST, definition="another")) + b"\n")
    assert kept(path) == {}


def test_a_line_that_is_no_result_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"cell": 1}\n')
    with pytest.raises(pt.FileError, match="line 1 is no result"):
        kept(path)


def test_a_process_that_takes_too_long_is_a_timeout(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "_command", lambda *_: ["sleep", "60"])
    assert measure_apart(FIRST, tmp_path, 0.1).outcome == "timeout"


def test_a_process_that_fails_says_why(monkeypatch, tmp_path):
    code = "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(run, "_command", lambda *_: [sys.executable, "-c", code])
    found = measure_apart(FIRST, tmp_path, 60)
    assert (found.outcome, found.reason) == ("failed", "what went wrong")


# ----------------------------------------------------------------------------- summary

IN_ORDER = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
BEST_IS_SECOND = [(1.0, 12.0), (2.0, 10.0), (3.0, 30.0)]


@pytest.mark.parametrize(
    ("times", "correlation", "regret"),
    [(IN_ORDER, 1.0, 0.0), (BEST_IS_SECOND, 0.5, 0.2), ([(1.0, 2.0)] * 3, None, 0.0)],
)
def test_order_of_plans(times, correlation, regret):
    names = list(SCHEDULES)
    results = [result(Cell("gpt", n, "v5e:4x4"), *t) for n, t in zip(names, times, strict=False)]
    (order,) = summarise(results).orders
    assert order.plans == 3
    assert order.correlation == (correlation and pytest.approx(correlation))
    assert order.regret == pytest.approx(regret)


def test_the_order_of_candidates_is_told_apart():
    names = [*SCHEDULES, *CANDIDATES]
    results = [result(Cell("gpt", name, "h100:8"), n, n) for n, name in enumerate(names, 1)]
    by_hand, candidates = summarise(results).orders
    assert (by_hand.candidates, by_hand.plans) == (False, 5)
    assert (candidates.candidates, candidates.plans) == (True, 5)


def test_the_candidate_that_a_compiler_takes_beside_the_best_by_hand():
    times = {"fsdp": 4.0, "tensor-parallel": 8.0, "automatic": 1.0}
    times |= dict(zip(CANDIDATES, (5.0, 6.0, 3.0), strict=False))
    results = [result(Cell("gpt", name, "v5e:4x4"), 1.0, time) for name, time in times.items()]
    (found,) = summarise(results).confirmed
    assert (found.candidates, found.place, found.seconds) == (3, "candidate-3", 3.0)
    assert (found.by_hand, found.gain, found.less) == ("fsdp", pytest.approx(0.4), 0.25)
    assert "candidate-3, 3 s, -40.0% beside the first, -25.0% beside fsdp" in markdown(
        results, {}, ""
    )


def test_without_several_candidates_nothing_is_confirmed():
    assert summarise([result(FIRST), result(SECOND)]).confirmed == []


def test_the_candidates_of_a_search_are_different_plans_the_searched_one_first():
    automatic, *candidates = [
        run.planned(Cell("mlp", name, "h100:8")) for name in ("automatic", *list(CANDIDATES)[:3])
    ]
    share = automatic.hardware.hidden_share.value  # schedules hide less than could be
    times = [each.estimate.expected_time(share) for each in candidates]
    assert times[0] == automatic.estimate.expected_time(share)
    assert min(times) == times[0]
    assert len(set(times)) == 3


def test_two_plans_are_too_few_for_an_order():
    assert summarise([result(FIRST), result(SECOND)]).orders == []


def test_memory_errors_and_false_fits():
    results = [
        result(FIRST, predicted_memory=110),
        result(SECOND, predicted_memory=70, fits=False),
        result(FIRST, outcome="out of memory", compiled_memory=None, collectives=""),
        result(FIRST, outcome="timeout", compiled_memory=None, fits=False, collectives=""),
    ]
    found = summarise(results)
    assert found.median_memory_error == pytest.approx(0.2)
    assert found.worst_memory_error == pytest.approx(-0.3)
    assert (found.false_fits, found.false_misfits) == (1, 1)
    assert found.outcomes == {"compiled": 2, "out of memory": 1, "timeout": 1}
    assert found.collectives == {"equal": 2}


def test_rewrites_are_told_with_their_rule():
    rewritten = {"collectives": "rewritten", "rewrites": {"narrowed": 2, "shard of a sum": 3}}
    results = [result(FIRST, **rewritten), result(SECOND, **rewritten)]
    assert summarise(results).rewrites == {"narrowed": 4, "shard of a sum": 6}
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view(results))
    assert "4 x narrowed: an all_gather, all_to_all or" in capture.get()


def test_table_and_json_hold_every_cell():
    results = [result(FIRST), result(SECOND, outcome="failed", reason="no compiler")]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view(results))
    text = capture.get()
    assert "data-parallel" in text and "failed: no compiler" in text
    assert json.loads(json.dumps(data(results)))["cells"][1]["reason"] == "no compiler"


def test_as_markdown_every_row_has_as_many_columns():
    failed = dataclasses.replace(result(SECOND), outcome="failed", reason="no libtpu")
    lines = markdown([result(FIRST), failed], {"jax": "1.2"}, "2026-01-31").splitlines()
    assert lines[0] == "Made on 2026-01-31 with jax 1.2."
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 2 and {row.count("|") for row in rows} == {12}
    assert "failed: no libtpu" in rows[-1] and "- Cells: 1 compiled, 1 failed" in lines


# ------------------------------------------------------------------------------ the command


def test_the_command_names_all_models_and_refuses_others():
    helped = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "400"})
    assert helped.exit_code == 0
    assert all(name in helped.output for name in (*MODELS, *SINGLE))
    refused = CliRunner().invoke(app, ["gtp"])
    assert isinstance(refused.exception, ModelError)
    assert "no model 'gtp'; did you mean 'gpt'" in str(refused.exception)


def test_the_command_shows_what_is_measured(measured, tmp_path):
    options = ["--results", str(tmp_path / "results.jsonl"), "--json", "--topology", "v5p:2x2x4"]
    shown = CliRunner().invoke(app, ["gpt", "gpt-large", *options])
    assert shown.exit_code == 0 and len(json.loads(shown.output)["cells"]) == len(measured) == 7
