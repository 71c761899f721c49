"""What is gathered again where memory is short: as little as it takes, the cheapest first."""

from __future__ import annotations

import json
from itertools import pairwise

import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import array, numbers, planner, runs_as_the_original
from partita.analysis import Between
from partita.cost import CostModel, load
from partita.decisions import GatherAgain
from partita.tiling import Tiling

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


def made(memory=None, fn=twice, tactics=TACTICS):
    args = [array(*shape) for shape in SHAPES], array(64, 64)
    return plan(fn, *args, memory=memory, tactics=tactics)


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
    found = [[window.number for window in windows[between][0]] for between in Between]
    assert found == [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 1], [0, 1, 2]]
    tight = plan(fn, *args, memory=1)
    assert tight.spmd.counts()["all_gather"] <= 2
    runs_as_the_original(tight, [numbers(64, 64) / 16], numbers(64, 64))


def test_it_is_never_slower_than_gathering_everything_again_for_uses_far_apart(gpt_bench):
    b = gpt_bench(4, "x=8")
    batch = next(name for name in b.program.argument_names if "tokens" in name)
    embed = next(name for name in b.program.argument_names if name.endswith("['embed']"))
    tiling = b.tile((batch, 0, "x"), (embed, 1, "x"))

    def cost(capacity, decided=()):
        model = CostModel(b.graph, b.analysis, b.mesh, load("cpu"), capacity)
        gathers = frozenset(decided)
        asked = Tiling(tiling.ops, tiling.values, tiling.pinned, gathers)
        return model.cost(b.lowerer.lower(asked))

    kept = cost(2**60)
    far = cost(2**60, [(value, Between.FAR) for value in range(len(b.graph.values))])
    assert far.peak < kept.peak and set(far.regathered.values()) == {Between.FAR}
    steps = [kept.time.step_time]
    for part in (0.01, 0.25, 0.5, 0.75, 1.0):
        room = int(kept.peak - part * (kept.peak - far.peak))
        chosen = cost(room)
        assert chosen.peak <= room
        steps.append(chosen.time.step_time)
    assert steps[1] < far.time.step_time
    assert max(steps) <= far.time.step_time * (1 + 1e-9)


def gathering(between, *weights):
    """A tactic that decides between which uses weights are gathered again."""

    class Decide:
        name = f"gathers {weights} again"

        def apply(self, stage):
            arguments = stage.context.analysis.program.arguments
            decision = GatherAgain(tuple(arguments[n] for n in weights), between)
            return pt.Outcome(decision.apply(stage).assignment, decided=(decision,))

    return Decide()


def test_what_is_decided_is_gathered_again_though_it_would_fit():
    decided = made(tactics=(*TACTICS, gathering("all", 2, 4)))
    assert again(decided) == [2, 4] and decided.estimate.fits
    kept = made()
    assert decided.estimate.peak_memory < kept.estimate.peak_memory
    assert decided.estimate.step_time > kept.estimate.step_time
    runs_as_the_original(decided, [numbers(*shape) / 16 for shape in SHAPES], numbers(64, 64))


def test_what_is_decided_to_be_kept_is_kept_where_memory_is_short():
    tight = made().estimate.peak_memory - 1
    assert again(made(tight)) == [1]
    assert again(made(tight, tactics=(*TACTICS, gathering("none", 1)))) == [2]
    everything = made(tight, tactics=(*TACTICS, gathering("none", *range(6))))
    assert again(everything) == [] and not everything.estimate.fits


def test_what_was_chosen_stands_in_the_file(tmp_path):
    kept = made()
    tight = made(kept.estimate.peak_memory - COPIES[2] - 1)
    tight.save(tmp_path / "plan.json")
    args = [array(*shape) for shape in SHAPES], array(64, 64)
    loaded = pt.load(tmp_path / "plan.json", twice, *args)
    assert again(loaded) == again(tight) == [2, 4]
    assert loaded.estimate == tight.estimate
    # Another memory, or another price of a collective, would have it chosen otherwise.
    said = json.loads((tmp_path / "plan.json").read_text())["gathered_again"]
    assert said == [{"decision": "gather_again", "values": [2, 4], "between": "all"}]


def test_what_fits_is_kept_when_it_is_loaded_too(tmp_path):
    plan = made()
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["gathered_again"] == []
