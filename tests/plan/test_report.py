"""Reports: what they begin with, what is one line, and that nothing is wrapped."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner
from partita.report.plan import view
from partita.text import plain, relative

HERE = relative(__file__)

plan = planner(mesh="data=4,model=2")
ROWS = pt.ManualPartition({"x": 0}, axis="data")


def step(w, x):
    return jnp.fft.fft(jnp.tanh(x @ w), axis=0).real.sum()


ARGS = (array(64, 32), array(16, 64))


def test_a_report_begins_with_the_result():
    title, empty, time, memory, idle, *_ = str(plan(step, *ARGS, tactics=[ROWS])).splitlines()
    assert title == "step on mesh data=4,model=2 (8 x tpu_v5e)"
    assert not empty
    assert time.startswith("step time    ") and "; serial " in time
    assert memory.startswith("peak memory  ") and "of 15.8 GiB: fits; arguments" in memory
    assert idle.split("  ", 1)[0] == "idle axis"
    assert idle.split()[2:] == "model its 2 devices do the same work".split()


def test_then_come_collectives_arguments_the_history_and_the_colors():
    text = str(plan(step, *ARGS, tactics=[ROWS]))
    headings = ["step time", "Collectives", "Arguments", "Tactics", "Colors"]
    places = [text.index(f"\n{heading}") for heading in headings]
    assert places == sorted(places)


def test_a_report_says_if_no_axis_is_idle_and_if_the_plan_does_not_fit():
    tactics = [ROWS, pt.ManualPartition({"w": 1}, axis="model")]
    text = str(plan(step, *ARGS, tactics=tactics, memory="1KiB"))
    assert "idle axes    none\n" in text
    assert "of 1.0 KiB: DOES NOT FIT;" in text


def test_lines_with_sources_are_relative_and_not_wrapped():
    line = step.__code__.co_firstlineno + 1
    text = str(plan(step, *ARGS, tactics=[ROWS]))
    (told,) = (each for each in text.splitlines() if "replicated fft" in each)
    assert f"fft at {HERE}:{line} " in told
    assert "whole" in told.split(": ")[-1] or "replication" in told.split(": ")[-1]


def test_a_narrow_terminal_is_not_shown_the_shards():
    done = plan(step, *ARGS).done
    assert "shard per device" in plain(view(done))
    assert "shard per device" in plain(view(done, 100))
    assert "shard per device" not in plain(view(done, 80))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plan", "<Plan of step on data=4,model=2 (tpu_v5e): step "),
        ("core", "<Core of step on data=4,model=2>"),
        ("diff", "<PlanDiff: step "),
        ("memory", "<Footprint: peak "),
        ("colors", "<Colors: "),
        ("spmd", "<SpmdProgram step on data=4,model=2: "),
        ("program", "<Program step: "),
        ("explanation", "<Explanation of 1 entries>"),
        ("verification", "<Verification of step on data=4,model=2, partitioned, for host devices"),
    ],
)
def test_what_prints_a_page_has_one_line_for_the_prompt(name, shown):
    made = plan(step, *ARGS, tactics=[ROWS])
    thing = {
        "plan": lambda: made,
        "core": lambda: made.core,
        "diff": lambda: made.diff(plan(step, *ARGS)),
        "memory": made.memory,
        "colors": lambda: made.colors,
        "spmd": lambda: made.spmd,
        "program": lambda: made.program,
        "explanation": lambda: made.explain("x"),
        "verification": made.verify,
    }[name]()
    assert repr(thing).startswith(shown) and "\n" not in repr(thing)
    assert "\n" in str(thing)


def test_zeros_like_a_sharded_parameter_are_told_to_be_replicated():
    def moments(w):
        return jnp.zeros_like(w), jnp.tanh(w), w + jnp.zeros_like(w)

    made = plan(moments, array(256, 128), tactics=pt.ManualPartition({"w": 0}, axis="data"))
    text = str(made)
    assert "Results that depend on no argument" in text
    assert "result[0]: f32[256,128], 128.0 KiB; w is (data, -)" in text
    assert "ManualPartition({'result[0]': 0}, axis=...)" in text
    assert "result[1]: " not in text and "result[2]: " not in text
    sharded = made.then(pt.ManualPartition({"result[0]": 0}, axis="data"))
    assert "depend on no argument" not in str(sharded)
