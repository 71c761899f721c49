"""The report page as a file: its parts, what is escaped, its data, and the library it embeds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from importlib.resources import files

import jax.numpy as jnp
import msgspec
import pytest

import partita as pt
from checks import array, planner
from partita.report.collect import collect
from partita.report.data import PlanData
from partita.report.page import D3_VERSION, page
from partita.report.page.markup import grid

D3 = "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539"
"""Of `dist/d3.min.js` in the npm package d3 7.9.0."""

plan = planner(mesh="data=4,model=2")


def step(w, x):
    return (jnp.tanh(x @ w) @ w.T).sum()


ARGS = (array(64, 32), array(16, 64))
ROWS = pt.ManualPartition({"x": 0}, "data")
TALL = pt.ManualPartition({"w": 1}, "model")


@pytest.fixture(scope="module")
def made():
    return plan(step, *ARGS, tactics=[ROWS, TALL])


@pytest.fixture(scope="module")
def text(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    made.report(path)
    return path.read_text("utf-8")


def headings(text):
    return re.findall(r"<h2[^>]*>(.*?)</h2>", text)


def test_a_page_begins_with_the_decision(text):
    (told,) = re.findall(r'id="decision">(.*?)</p>', text)
    assert told.startswith("step on 8 tpu_v5e, as data=4: ")
    assert "A step is predicted to take" in told and "It fits" in told


def test_it_has_the_parts_that_the_plan_says_something_in(text):
    parts = ["One step in time", "Memory over the step", "Collectives", "Arguments", "Tactics"]
    assert headings(text) == parts


def test_it_has_a_search_if_there_was_one_and_what_was_refused():
    searched = plan(
        step,
        *ARGS,
        tactics=[pt.ManualPartition({"x": 1}, "odd"), pt.AutomaticPartition()],
        mesh="odd=7,data=2",
    )
    text = page(collect(searched.done, details=True))
    assert headings(text)[-2:] == ["Refused", "Search"]


def test_it_asks_for_nothing_from_elsewhere(text):
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', outside)
    assert "@import" not in outside and "url(" not in outside


def test_names_are_escaped():
    def evil(**arrays):
        return sum(jnp.sum(a) for a in arrays.values())

    name = "</script><img src=x onerror=alert(1)>"
    text = page(collect(plan(evil, **{name: array(8, 8)}).done, details=True))
    assert "<img" not in text and text.count("</script>") == 2


def test_what_a_compiler_confirmed_stands_beside_the_prediction(made, tmp_path):
    made.report(tmp_path / "plan.html", made.verify())
    text = (tmp_path / "plan.html").read_text("utf-8")
    assert "Compiled" in headings(text) and "as predicted" in text


def test_the_data_are_what_the_schema_says(made, tmp_path):
    made.report(tmp_path / "plan.json")
    data = (tmp_path / "plan.json").read_bytes()
    read = msgspec.json.decode(data, type=PlanData)
    assert read.details is not None
    assert json.loads(data) == dataclasses.asdict(read)
    assert read.arguments[0].sharding == [None, "model"]
    assert [t.name for t in read.history] == [t.name for t in made.history]


def test_times_of_collectives_add_up_to_the_estimate(made):
    moves = collect(made.done, details=True).details.moves
    exposed, hidden = (
        sum(getattr(m, f"{k}_seconds") for m in moves) for k in ("exposed", "hidden")
    )
    assert exposed == pytest.approx(made.estimate.exposed_time)
    assert hidden == pytest.approx(made.estimate.hidden_time)


def test_a_report_is_text_if_its_name_says_so(made, tmp_path):
    made.report(tmp_path / "plan.txt")
    assert (tmp_path / "plan.txt").read_text("utf-8") == f"{made}\n"


@pytest.mark.parametrize("parts", [1, 2, 16, 512, 4096])
def test_a_grid_of_any_number_of_parts_can_be_drawn(parts):
    drawn = grid([8192, 8192], ["x", None], {"x": parts})
    sizes = re.findall(r'(?:width|height)="([^"]+)"', drawn)
    assert min(map(float, sizes)) > 0
    assert f"cut into {parts} by 1 parts" in drawn
    assert drawn.count("<line") == min(parts, 16) - 1


def test_another_ending_is_an_error(made, tmp_path):
    with pytest.raises(pt.FileError, match=r"ends in \.html, \.json, \.txt"):
        made.report(tmp_path / "plan.pdf")


def test_the_library_is_the_one_of_the_npm_package():
    vendor = files("partita.report.page").joinpath("static", "vendor")
    assert hashlib.sha256(vendor.joinpath("d3.min.js").read_bytes()).hexdigest() == D3
    assert f"v{D3_VERSION}" in vendor.joinpath("d3.min.js").read_text("utf-8")[:60]
    assert "Permission to use" in vendor.joinpath("d3.LICENSE").read_text("utf-8")
