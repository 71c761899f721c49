"""Values from outside of a loop, gathered in each of its iterations where memory is short."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tools.compiling import compiled

import partita as pt
from checks import array, assert_same, numbers, planner
from partita.analysis import Between, analyse
from partita.decisions import GatherAgain
from partita.spmd.instructions import Reshard, While
from partita.verify.collectives import found_collectives
from partita.verify.comparison import side_by_side
from partita.verify.hlo import parse

LAYERS, BATCHES, WIDTH, ROWS = 4, 4, 64, 16
GATHERED = 4 * WIDTH * WIDTH
"""Bytes of a gathered weight."""

FSDP = (pt.ManualPartition({"xs": 1}, "d"), pt.ManualPartition({"ws*": 0}, "d"))
plan = planner(hardware="cpu", mesh="d=4", tactics=FSDP)


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def step(ws, xs):
    """A train step that accumulates the gradients of micro-batches."""

    def accumulate(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(ws, x)), None

    zeros = jax.tree.map(jnp.zeros_like, ws)
    total, _ = lax.scan(accumulate, zeros, xs)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, total)


ARGS = [array(WIDTH, WIDTH)] * LAYERS, array(BATCHES, ROWS, WIDTH)


@functools.cache
def made(memory=None, decided=()):
    return plan(step, *ARGS, memory=memory, tactics=(*FSDP, *decided), donate_argnums=0)


def gathers(plan):
    """`(value, runs per step)` of every all-gather, in program order."""
    return [(c.value, c.count) for c in plan.collectives if c.kind == "all_gather"]


def ahead(plan):
    """The values that are gathered outside of all loops."""
    reshards = [item for item in plan.spmd.instructions if isinstance(item, Reshard)]
    return [plan.program.describe(plan.spmd.buffers[item.input].value) for item in reshards]


def runs_as_predicted(plan, *args):
    """The plan runs as the original does, and its collectives as often as predicted."""
    placed = plan.shard(*args)
    program = compiled(plan.jit(), *placed)
    found = found_collectives(parse(program.as_text()))
    comparison = side_by_side(plan.collectives, plan.mesh, found, executions=True)
    assert comparison.equal, f"\n{comparison}"
    assert_same(program(*placed), compiled(jax.jit(plan.fn), *args)(*args))


def values():
    return [numbers(WIDTH, WIDTH, seed=n) / 8 for n in range(LAYERS)], numbers(*ARGS[1].shape)


WEIGHTS = [f"ws[{n}]" for n in range(LAYERS)]


# ----------------------------------------------------------------------- the choice, and its price


def test_with_memory_weights_are_gathered_once_ahead_of_the_loop():
    kept = made()
    assert ahead(kept) == WEIGHTS and gathers(kept) == [(name, 1) for name in WEIGHTS]
    assert made(kept.estimate.peak_memory).spmd.counts() == kept.spmd.counts()
    runs_as_predicted(kept, *values())


def test_where_they_do_not_fit_together_they_are_gathered_in_each_iteration():
    kept = made()
    tight = made(kept.estimate.peak_memory - 2 * GATHERED)
    assert tight.estimate.fits
    # As many copies as fit are kept: one in all iterations, and one until the backward pass.
    assert ahead(tight) == ["ws[3]"]
    forward, backward = ["ws[0]", "ws[1]", "ws[2]"], ["ws[1]"]
    assert gathers(tight) == [("ws[3]", 1), *((w, BATCHES) for w in forward + backward)]
    assert tight.memory().peak == tight.estimate.peak_memory
    assert tight.estimate.step_time > kept.estimate.step_time
    runs_as_predicted(tight, *values())


def test_the_smallest_plan_holds_two_gathered_weights_at_a_time():
    """One that is used, and the one that is prefetched."""
    smallest = made(1)
    assert not smallest.estimate.fits and not ahead(smallest)
    # The first weight is not needed for a gradient.
    assert [name for name, _ in gathers(smallest)] == [*WEIGHTS, *WEIGHTS[:0:-1]]
    copies = smallest.memory().timeline["gathered copies"]
    kept = made().memory().timeline["gathered copies"]
    gradient = GATHERED  # before it is reduced
    assert kept.max() == LAYERS * GATHERED + gradient
    assert copies.max() == 2 * GATHERED + gradient
    runs_as_predicted(smallest, *values())


def test_each_waits_for_the_one_before_it():
    """So no compiler moves it out of the loop, or merges it with another one of that weight."""
    (loop,) = (item for item in made(1).spmd.instructions if isinstance(item, While))
    moves = [item for item in loop.body.instructions if isinstance(item, Reshard) and item.body]
    assert len(moves) == 2 * LAYERS - 1
    assert moves[0].after in loop.body.arguments
    assert [move.after for move in moves[1:]] == [move.output for move in moves[:-1]]


@pytest.mark.parametrize("missing", [1, GATHERED, GATHERED + 1, 2 * GATHERED])
def test_no_more_is_gathered_in_iterations_than_it_takes(missing):
    kept = made()
    tight = made(kept.estimate.peak_memory - missing)
    assert tight.estimate.fits
    assert tight.estimate.step_time <= made(1).estimate.step_time
    few = len(gathers(tight))
    assert LAYERS <= few < 2 * LAYERS - 1


def test_traffic_counts_iterations():
    kept, tight = made(), made(1)
    key = ("all_gather", ("d",))
    assert kept.estimate.traffic[key].count == LAYERS
    assert tight.estimate.traffic[key].count == (2 * LAYERS - 1) * BATCHES
    assert tight.estimate.traffic[key].bytes == (2 * LAYERS - 1) * BATCHES * GATHERED


@pytest.mark.parametrize("hardware", ["cpu", "tpu_v5e", "h100"])
def test_the_timeline_adds_up(hardware):
    tight = plan(step, *ARGS, hardware=hardware, memory=1)
    assert not ahead(tight)
    found, estimate = tight.timeline, tight.estimate
    near = functools.partial(pytest.approx, rel=1e-9, abs=1e-15)
    assert found.busy(0, "compute") == near(estimate.compute_time)
    assert found.busy(0, "wait") == near(estimate.exposed_time)
    links = [found.busy(1 + link, "hidden") for link in range(len(estimate.link_times))]
    assert links == [near(seconds) for seconds in estimate.link_times]


def test_nothing_is_gathered_in_iterations_if_gathering_again_outside_frees_enough():
    def fn(w, v, u, x):
        x = jnp.tanh(jnp.tanh(x @ w) @ v) @ v.T
        for _ in range(3):
            x = jnp.tanh(x @ u)
        x = lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ u), x)
        return x @ w

    def made(memory=None):
        tactics = (
            pt.ManualPartition({"x": 0}, "d"),
            pt.ManualPartition({"w": 0, "v": 0, "u": 0}, "d"),
        )
        args = array(64, 64), array(64, 512), array(64, 64), array(64, 64)
        return plan(fn, *args, memory=memory, tactics=tactics)

    tight = made(made().estimate.peak_memory - 1)
    assert tight.estimate.fits
    assert [each for each in gathers(tight) if each[0] in "wu"] == [("w", 1), ("u", 1), ("w", 1)]


# ------------------------------------------------------------------------------------- which loops


def windows(program):
    """The use windows of argument 0, by `Between`."""
    analysis = analyse(program, 48)
    return {between.name: analysis.windows[between][0] for between in Between}


def test_windows_in_the_body_of_a_loop(program):
    """Three uses in a loop, the last one in a loop inside; and one use after both."""

    def fn(w, x):
        def body(_, x):
            x = jnp.tanh(jnp.tanh(x @ w) @ w)
            return lax.fori_loop(0, 2, lambda _, y: jnp.tanh(y @ w), x)

        return lax.fori_loop(0, 5, body, x) @ w

    found = windows(program(fn, "f32[8,8]", "f32[8,8]"))
    numbered = {name: [window.number for window in each] for name, each in found.items()}
    assert numbered == {
        "NONE": [0, 0, 0, 0],
        "FAR": [0, 0, 0, 0],
        "ALL": [0, 0, 0, 1],
        "ITERATIONS": [0, 0, 0, 1],
        "EACH": [0, 1, 2, 3],
    }
    for between in Between:
        runs = [window.runs for window in found[between.name]]
        assert runs == ([5, 5, 5, 1] if between.in_loops else [1, 1, 1, 1])


def test_a_shared_weight_is_gathered_in_the_outer_body_and_a_layer_in_the_inner_one():
    def loss(p, x):
        def layer(h, w):
            return jnp.tanh(h @ w) @ p["shared"], None

        return jnp.mean(lax.scan(layer, x, p["ws"])[0] ** 2)

    def step(p, xs):
        def accumulate(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

        return lax.scan(accumulate, jax.tree.map(jnp.zeros_like, p), xs)[0]

    args = {"shared": array(64, 64), "ws": array(3, 64, 64)}, array(4, 16, 64)
    fsdp = pt.ManualPartition({"xs": 1}, "d"), pt.ManualPartition({"*shared*": 0, "*ws*": 1}, "d")
    kept = plan(step, *args, tactics=fsdp)
    tight = plan(step, *args, tactics=(*fsdp, Decide("each", 1)))
    (outer,) = (item for item in tight.spmd.instructions if isinstance(item, While))
    assert sum(isinstance(item, Reshard) for item in outer.body.instructions) == 2
    slices = [(name, count) for name, count in gathers(kept) if "shared" not in name]
    assert [count for _, count in slices] == [12, 12]  # stacked weights, as before
    assert ("p['shared']", 1) in gathers(kept)
    shared = [(name, count) for name, count in gathers(tight) if "shared" in name]
    assert shared == [("p['shared']", 4)] * 2  # ahead of both inner loops
    assert [each for each in gathers(tight) if each not in shared] == slices
    p = {"shared": numbers(64, 64) / 8, "ws": numbers(3, 64, 64) / 8}
    runs_as_predicted(tight, p, numbers(4, 16, 64))


def test_ahead_of_a_loop_that_runs_nobody_knows_how_often_everything_is_gathered(program):
    """What it would cost to gather in the loop is not known."""

    def fn(w, x):
        return lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: jnp.tanh(x @ w) @ w, x)

    found = windows(program(fn, "f32[64,64]", "f32[64,64]"))
    assert {window.body for each in found.values() for window in each} == {0}
    fsdp = pt.ManualPartition({"x": 0}, "d"), pt.ManualPartition({"w": 0}, "d")
    tight = plan(fn, array(64, 64), array(64, 64), memory=1, tactics=fsdp)
    assert gathers(tight) == [("w", 1)] and "w" in ahead(tight)


def test_uses_in_one_loop_are_not_gathered_twice_ahead_of_it(program):
    """However far apart: both copies would be there until the loop ends."""

    def fn(w, x):
        def body(_, x):
            x = jnp.tanh(x @ w)
            for _ in range(30):
                x = jnp.tanh(jnp.sin(x))
            return x @ w

        return lax.fori_loop(0, 5, body, x)

    found = windows(program(fn, "f32[8,8]", "f32[8,8]"))
    assert [window.number for window in found["FAR"]] == [0, 0]
    assert [window.number for window in found["ITERATIONS"]] == [0, 1]


def test_a_branch_in_an_iteration_waits_for_what_is_gathered_before_it():
    def fn(w, xs):
        def body(total, x):
            y = lax.cond(jnp.sum(total) > 0, lambda: x @ w, lambda: x)
            return total + y, None

        return lax.scan(body, jnp.ones((16, 64)), xs)[0]

    tactics = pt.ManualPartition({"xs": 1}, "d"), pt.ManualPartition({"w": 0}, "d")
    tight = plan(fn, array(64, 64), array(4, 16, 64), memory=1, tactics=tactics)
    assert ("w", 4) in gathers(tight)
    runs_as_predicted(tight, numbers(64, 64) / 8, numbers(4, 16, 64))


# ------------------------------------------------------------------------- decisions, files, words


class Decide:
    """Decides between which uses the first arguments are gathered again."""

    def __init__(self, between, count=LAYERS):
        self.name, self.between, self.count = f"gathers {between}", between, count

    def apply(self, stage):
        arguments = stage.context.analysis.program.arguments
        decision = GatherAgain(tuple(arguments[: self.count]), self.between)
        return pt.Outcome(decision.apply(stage).assignment, decided=(decision,))


@pytest.mark.parametrize(("between", "times"), [("iterations", LAYERS), ("each", 2 * LAYERS - 1)])
def test_what_is_decided_is_gathered_so_though_it_would_fit(between, times):
    decided = made(decided=(Decide(between),))
    assert decided.estimate.fits and not ahead(decided)
    assert len(gathers(decided)) == times
    assert decided.memory().peak == decided.estimate.peak_memory
    runs_as_predicted(decided, *values())


def test_what_is_decided_to_be_kept_is_gathered_ahead_where_memory_is_short():
    assert ahead(made(1, decided=(Decide("none"),))) == WEIGHTS


def test_a_saved_plan_gathers_in_the_same_loops(tmp_path):
    tight = made(made().estimate.peak_memory - 2 * GATHERED)
    tight.save(tmp_path / "plan.json")
    said = json.loads((tmp_path / "plan.json").read_text())["gathered_again"]
    assert {each["between"] for each in said} <= {"iterations", "each"}
    assert sorted(value for each in said for value in each["values"]) == [0, 1, 2]
    loaded = pt.load(tmp_path / "plan.json", step, *ARGS)
    assert loaded.estimate == tight.estimate
    assert (ahead(loaded), gathers(loaded)) == (ahead(tight), gathers(tight))


def test_the_report_lists_what_is_gathered_in_iterations():
    title = "Gathered in each iteration of a loop instead of once, for lack of memory:"
    assert f"{title}\n  ws[0]\n" in str(made(1))
    assert "in each iteration" not in str(made())


def test_an_explanation_prices_the_other_way():
    kept, tight = made(), made(1)
    number = next(c.index for c in kept.collectives if c.kind == "all_gather")
    assert "gather in each iteration instead of ahead of loops, everywhere" in str(
        kept.explain(number)
    )
    number = next(c.index for c in tight.collectives if c.kind == "all_gather")
    assert "keep what is gathered between uses, everywhere" in str(tight.explain(number))
