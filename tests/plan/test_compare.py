"""Plans side by side: plan files without their program, and every combination of a sweep."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner
from partita import cli
from partita.cli.sweep import swept, tactics_of
from partita.report.compare import comparison, side_of_file, side_of_plan, view
from partita.report.page.comparison import comparison_page
from partita.text import plain

plan = planner(mesh="data=4,model=2")


def step(w, x):
    return jnp.tanh(x @ w) @ w.T


ROWS, TALL = pt.ManualPartition({"x": 0}, "data"), pt.ManualPartition({"w": 1}, "model")


@pytest.fixture(scope="module")
def plans():
    return [plan(step, array(64, 32), array(16, 64), tactics=t) for t in ([ROWS], [ROWS, TALL])]


@pytest.fixture(scope="module")
def files(plans, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    for name, each in zip("ab", plans, strict=True):
        each.save(folder / f"{name}.json")
    return [folder / "a.json", folder / "b.json"]


def test_files_are_compared_as_the_plans_are(plans, files):
    of_files = comparison(
        [side_of_file(path, name) for path, name in zip(files, "ab", strict=True)]
    )
    of_plans = comparison([side_of_plan(name, p.done) for name, p in zip("ab", plans, strict=True)])
    assert of_files == of_plans


def test_what_differs_is_listed_and_what_does_not_is_not(files):
    found = comparison([side_of_file(path) for path in files])
    assert [(s.name, s.shardings) for s in found.shardings] == [
        ("argument w", [[], [None, "model"]]),
    ]
    assert [(e.kind, e.axes, e.count) for e in found.collectives] == [
        ("all_reduce", ["model"], [0, 1]),
    ]


def test_two_are_shown_with_their_change(files):
    text = plain(view(comparison([side_of_file(path) for path in files])))
    (line,) = (each for each in text.splitlines() if each.startswith("step time"))
    assert line.endswith("%")
    assert "Sharded otherwise" in text


def test_the_page_names_the_quickest_and_shows_what_differs(files):
    found = comparison([side_of_file(path, path.stem) for path in files])
    text = comparison_page(found, "two <plans>")
    assert "two &lt;plans&gt;" in text and "The quickest that fits is" in text
    assert "argument w" in text and "all_reduce" in text


def run(capsys, monkeypatch, *args):
    monkeypatch.setattr("sys.argv", ["partita", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capsys.readouterr()


def test_the_command_prints_json_and_writes_a_page(files, tmp_path, capsys, monkeypatch):
    page = tmp_path / "c.html"
    code, out = run(capsys, monkeypatch, "compare", *files, "--json", "--html", page)
    assert code == 0
    assert [p["name"] for p in json.loads(out.out)["plans"]] == list(map(str, files))
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_one_file_alone_is_an_error(files, capsys, monkeypatch):
    code, out = run(capsys, monkeypatch, "compare", files[0])
    assert code == 2 and "two plan files or more" in out.err


SWEEP = ["plan", "mlp", "--hardware", "tpu_v5e", "--json", "--sweep", "mesh=data=8 data=2"]


def test_a_sweep_plans_every_combination_best_first(capsys, monkeypatch):
    code, out = run(capsys, monkeypatch, *SWEEP, "--sweep", "tactics=none data@data")
    found = json.loads(out.out)["plans"]
    times = [each["estimate"]["step_time"] for each in found]
    assert code == 0 and len(found) == 4 and times == sorted(times)
    assert {each["name"] for each in found} == {
        f"mesh=data={n} tactics={t}" for n in (8, 2) for t in ("none", "data@data")
    }


def test_what_cannot_be_planned_is_told_and_left_out(capsys, monkeypatch):
    code, out = run(capsys, monkeypatch, *SWEEP, "--sweep", "tactics=none data@other")
    assert code == 1 and len(json.loads(out.out)["plans"]) == 2
    assert out.err.count("has no axis 'other'") == 2


@pytest.mark.parametrize("text", ["mesh", "mesh=", "color=red", "mesh= "])
def test_a_sweep_that_cannot_be_read_is_an_error(text):
    with pytest.raises(pt.OptionError, match="cannot read --sweep"):
        swept([text])


def test_tactics_are_read_in_order():
    found = tactics_of("data@x+*['w_in']:-1@y+search", lambda: pt.AutomaticPartition())
    kinds = [pt.DataParallel, pt.ManualPartition, pt.AutomaticPartition]
    assert [type(each) for each in found] == kinds
    assert "['w_in']" in found[1].name


def test_a_tactic_that_is_not_known_is_an_error():
    with pytest.raises(pt.TacticError, match="cannot read the tactic 'magic@x'"):
        tactics_of("magic@x", pt.AutomaticPartition)
