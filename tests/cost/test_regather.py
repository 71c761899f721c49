"""What is gathered again where memory is short: as little as it takes, the cheapest first."""

from __future__ import annotations

from itertools import pairwise

import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import array, numbers, planner, runs_as_the_original
from partita.analysis import Between
from partita.cost import CostModel, load

WIDTHS = (64, 128, 64, 256, 64, 384, 64)
SHAPES = tuple(pairwise(WIDTHS))
COPIES = tuple(4 * rows * columns for rows, columns in SHAPES)
"""Bytes of the gathered weights."""

TACTICS = (pt.ManualPartition({"x": 0}, "d"), pt.ManualPartition({"ws*": 1}, "d"))
plan = planner(hardware="cpu", mesh="d=8", tactics=TACTICS)


def twice(ws, x):
    """All weights, and then all of them once more: each 12 operations later, not far apart."""
    for _ in range(2):
        for w in ws:
            x = jnp.tanh(x @ w)
    return x


def made(memory=None, fn=twice):
    return plan(fn, [array(*shape) for shape in SHAPES], array(64, 64), memory=memory)


def again(plan):
    """The weights that are gathered again, by their numbers in the list."""
    gathered = [c.value for c in plan.collectives if c.kind == "all_gather"]
    return sorted({int(name[3:-1]) for name in gathered if gathered.count(name) > 1})


def test_what_fits_is_kept():
    exact = made(made().estimate.peak_memory)
    assert exact.estimate.fits and not exact.estimate.regather
    assert exact.spmd.counts() == {"all_gather": 6}


@pytest.mark.parametrize(
    ("missing", "weights"),
    [(1, [1]), (COPIES[1] + 1, [1, 3]), (COPIES[2] + 1, [2, 4])],
    ids=["one weight is enough", "two", "two larger ones"],
)
def test_only_as_many_weights_are_gathered_again_as_it_takes(missing, weights):
    kept = made()
    tight = made(kept.estimate.peak_memory - missing)
    assert tight.estimate.fits and tight.estimate.regather
    assert again(tight) == weights
    assert tight.spmd.counts() == {"all_gather": 6 + len(weights)}
    assert tight.estimate.step_time > kept.estimate.step_time
    assert tight.memory().peak == tight.estimate.peak_memory
    runs_as_the_original(tight, [numbers(*shape) / 16 for shape in SHAPES], numbers(64, 64))


def test_where_nothing_fits_the_plan_is_the_smallest():
    smallest = made(300_000)
    assert not smallest.estimate.fits
    assert smallest.spmd.counts() == {"all_gather": 12}
    assert smallest.estimate.peak_memory < made().estimate.peak_memory


def test_the_report_lists_what_is_gathered_again():
    tight = made(made().estimate.peak_memory - 1)
    assert "Gathered again instead of kept, for lack of memory:\n  ws[1]\n" in str(tight)
    assert "Gathered again" not in str(made())


def test_a_saved_plan_gathers_the_same_again(tmp_path):
    tight = made(made().estimate.peak_memory - 1)
    tight.save(tmp_path / "plan.json")
    args = [array(*shape) for shape in SHAPES], array(64, 64)
    loaded = pt.load(tmp_path / "plan.json", twice, *args)
    assert loaded.estimate == tight.estimate
    assert again(loaded) == [1]


def test_uses_inside_of_a_loop_share_what_is_gathered_before_it():
    def fn(ws, x):
        def body(_, x):
            return jnp.tanh(jnp.tanh(x @ ws[0]) @ ws[0])

        return lax.fori_loop(0, 3, body, jnp.tanh(x @ ws[0]))

    args = [array(64, 64)], array(64, 64)
    windows = plan(fn, *args).done.lowering.graph.analysis.windows
    assert [windows[between][0] for between in Between] == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]
    tight = plan(fn, *args, memory=1)
    assert tight.spmd.counts()["all_gather"] <= 2
    runs_as_the_original(tight, [numbers(64, 64) / 16], numbers(64, 64))


def test_it_is_never_slower_than_gathering_everything_again_for_uses_far_apart(gpt_bench):
    b = gpt_bench(4, "x=8")
    batch = next(name for name in b.program.argument_names if "tokens" in name)
    embed = next(name for name in b.program.argument_names if name.endswith("['embed']"))
    lowering = b.lowerer.lower(b.tile((batch, 0, "x"), (embed, 1, "x")))

    def cost(capacity, again=None):
        model = CostModel(b.graph, b.analysis, b.mesh, load("cpu"), capacity)
        return model.cost(lowering, again=again)

    kept, far = (cost(2**60, again) for again in (False, True))
    assert far.peak < kept.peak and set(far.regathered.values()) == {Between.FAR}
    steps = [kept.time.step_time]
    for part in (0.01, 0.25, 0.5, 0.75, 1.0):
        room = int(kept.peak - part * (kept.peak - far.peak))
        chosen = cost(room)
        assert chosen.peak <= room
        steps.append(chosen.time.step_time)
    assert steps[1] < far.time.step_time
    assert max(steps) <= far.time.step_time * (1 + 1e-9)
