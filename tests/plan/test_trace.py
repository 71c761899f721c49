"""Traces of a planned step: valid in the trace event format, with what a viewer needs."""

from __future__ import annotations

import gzip
import itertools
import json

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner

plan = planner(mesh="data=4,model=2")


def step(w, x):
    return (jnp.tanh(x @ w) @ w.T).sum()


def made():
    return plan(step, array(64, 32), array(16, 64), tactics=[pt.ManualPartition({"w": 0}, "data")])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "step.json.gz"
    made().trace(path)
    return json.loads(gzip.decompress(path.read_bytes()))


def nests(events):
    """Whether each event ends before the next begins, or after that has ended."""
    open_until = []
    for event in events:
        while open_until and open_until[-1] <= event["ts"] + 1e-6:
            open_until.pop()
        end = event["ts"] + event["dur"]
        if open_until and end > open_until[-1] + 1e-6:
            return False
        open_until.append(end)
    return True


def test_every_event_is_valid(trace):
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
        else:
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]


def test_events_of_a_thread_are_in_order_and_nest(trace):
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    for _, found in itertools.groupby(events, key=lambda e: (e["pid"], e["tid"])):
        found = list(found)
        assert [e["ts"] for e in found] == sorted(e["ts"] for e in found)
        assert nests(found)


def test_every_thread_has_a_name(trace):
    used = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    named = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert used <= set(named)
    assert list(named.values()) == ["compute", "ici data", "ici model"]


def test_the_last_event_ends_with_the_step(trace):
    last = max(e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X")
    assert last == pytest.approx(1e6 * made().estimate.step_time)


def test_collectives_say_what_they_move(trace):
    moved = {
        e["args"]["collective"]: e["args"] for e in trace["traceEvents"] if "bytes" in e["args"]
    }
    assert {n: (a["axes"], a["bytes"], a["dtype"]) for n, a in moved.items()} == {
        c.index: (",".join(c.axes), c.bytes, c.dtype) for c in made().collectives
    }
    assert all("test_trace.py" in a.get("source", "test_trace.py") for a in moved.values())


def test_a_name_without_gz_makes_a_file_that_is_not_compressed(tmp_path, trace):
    made().trace(tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_text()) == trace


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(pt.FileError, match="cannot write"):
        made().trace(tmp_path / "missing" / "step.json")
