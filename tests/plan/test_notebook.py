"""A plan as the output of a notebook cell: its parts, and nothing that one would not show."""

from __future__ import annotations

from html.parser import HTMLParser

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner

plan = planner(mesh="data=4,model=2")


def step(w, x):
    return (jnp.tanh(x @ w) @ w.T).sum()


@pytest.fixture(scope="module")
def cell():
    tactics = [pt.ManualPartition({"x": 0}, "data"), pt.ManualPartition({"w": 1}, "model")]
    return plan(step, array(64, 32), array(16, 64), tactics=tactics)._repr_html_()


class Checked(HTMLParser):
    """That every element is closed in order; which there are, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_has_no_script_no_style_sheet_and_no_identity(cell):
    found = Checked(cell)
    assert not {"script", "style", "link", "img", "iframe"} & set(found.tags)
    assert not any(name == "id" or name.startswith("on") for name in found.attributes)


def test_it_has_the_main_parts(cell):
    for part in ("A step is predicted to take", "<svg", "Collectives", "Arguments", "Tactics"):
        assert part in cell
    assert "all_reduce" in cell and "(data, -)" not in cell and "(data)" in cell


def test_it_is_small(cell):
    assert len(cell) < 100_000
