"""Collectives in loops are hidden by the work of one iteration, and by no more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import msgspec
import pytest

import partita as pt
from checks import array
from partita.analysis import analyse
from partita.cost import load
from partita.cost.devices.schema import Figure
from partita.cost.kernels.timing import Timing

V5E = load("tpu_v5e")
LAYERS, DEPTH, WIDTH = 8, 64, 1024


def stacked(rows, share=1.0):
    """A loop over layers, each of which gathers many weights; then work outside of it."""

    def fn(ws, x, big):
        def layer(h, w):
            for each in w:
                h = jnp.tanh(h @ each)
            return h, None

        h = jax.lax.scan(layer, x, ws)[0]
        return h, big @ big

    args = (
        array(LAYERS, DEPTH, WIDTH, WIDTH, dtype=jnp.bfloat16),
        array(rows, WIDTH, dtype=jnp.bfloat16),
        array(32768, 32768, dtype=jnp.bfloat16),
    )
    tactics = [pt.ManualPartition({"x": 0}, "x"), pt.ManualPartition({"ws": 2}, "x")]
    hardware = msgspec.structs.replace(V5E, loop_overlap=Figure(share, "assumption: of a test"))
    return pt.plan(fn, *args, mesh="x=4@dcn", hardware=hardware, tactics=tactics).estimate


def gathered(estimate):
    return sum(traffic.seconds for traffic in estimate.traffic.values())


def test_a_loop_that_computes_little_waits_for_what_it_gathers():
    """The product beside the loop takes longer than all gathers, and hides none of them."""
    small = stacked(16)
    assert small.compute_time > 1.3 * gathered(small)
    assert small.exposed_time > 0.9 * gathered(small)


def test_the_more_a_loop_computes_the_more_it_hides():
    exposed = [stacked(rows).exposed_time for rows in (16, 2**16, 2**19)]
    assert exposed[0] > 1.5 * exposed[1] > 3 * exposed[2]


def test_what_is_not_hidden_is_waited_for():
    for rows in (16, 2**19):
        estimate = stacked(rows)
        moved = estimate.exposed_time + estimate.hidden_time
        assert moved == pytest.approx(gathered(estimate), rel=0.01)


def test_of_the_work_a_compiler_may_use_a_share():
    whole, half = stacked(16), stacked(16, 0.5)
    assert half.hidden_time == pytest.approx(whole.hidden_time / 2)
    assert half.exposed_time + half.hidden_time == pytest.approx(
        whole.exposed_time + whole.hidden_time
    )


def test_what_an_iteration_needs_first_is_not_gathered_ahead(program):
    """However many layers are cut out of their stacks before: that takes no time."""

    def fn(x, *ws):
        def layer(h, w):
            for each in w:
                h = jnp.tanh(h @ each)
            return h, None

        return jax.lax.scan(layer, x, ws)[0]

    made = program(fn, "f32[512,256]", *["f32[4,256,256]"] * 60)
    timing = Timing(analyse(made), V5E)
    products = [op.index for op in made.operations if op.traits.product]
    hidden = {
        timing.analysis.uses[value][place]: bool(each)
        for value, place, each in zip(*timing.prefetched, strict=True)
    }
    assert not hidden[products[0], 1] and hidden[products[-1], 1]


@pytest.mark.parametrize("after", [0, 60])
def test_what_a_loop_leaves_behind_moves_beside_what_comes_after_it(after, program):
    """It is there when the loop ends, however long that computes. A sort needs it at the end."""

    def fn(x, w):
        def layer(h, _):
            for _ in range(60):
                h = jnp.tanh(h @ w)
            return h, None

        h, y = jax.lax.scan(layer, x, length=4)[0], x
        for _ in range(after):
            y = jnp.tanh(y @ w)
        return jnp.sort(h, axis=0) @ w, y

    made = program(fn, "f32[256,256]", "f32[256,256]")
    timing = Timing(analyse(made), V5E)
    (sort,) = (op.index for op in made.operations if op.kind == "stablehlo.sort")
    (left,) = made.operations[sort].operands
    hidden = {
        timing.analysis.uses[value][place]: bool(each)
        for value, place, each in zip(*timing.prefetched, strict=True)
    }
    assert hidden[sort, 0] == timing.overlapped_sums[left] == bool(after)


def blocks(residual, backward, hardware="h100"):
    """A loop over blocks of two products, Megatron's, with what it sums up at the end of each."""

    def loss(ws, x):
        def layer(h, w):
            wide, narrow = w
            return (h if residual else 0) + jnp.tanh(h @ wide) @ narrow, None

        return jax.lax.scan(layer, x, ws)[0].astype(jnp.float32).sum()

    def step(ws, x):
        return jax.tree.map(jnp.subtract, ws, jax.grad(loss)(ws, x)) if backward else loss(ws, x)

    ws = [array(LAYERS, *shape, dtype=jnp.bfloat16) for shape in ((1024, 4096), (4096, 1024))]
    tactics = [pt.ManualPartition({"ws[[]0]": 2}, "x")]
    x = array(2**14, 1024, dtype=jnp.bfloat16)
    return pt.plan(step, ws, x, mesh="x=4", hardware=hardware, tactics=tactics).estimate


@pytest.mark.parametrize("residual", [False, True])
def test_what_the_next_iteration_begins_with_is_waited_for(residual):
    """The sum at the end of the body is needed when the body begins again."""
    estimate = blocks(residual, backward=False)
    assert estimate.hidden_time < 0.05 * gathered(estimate) < estimate.exposed_time


def test_a_sum_runs_beside_the_gradients_of_weights():
    """In the backward pass they do not depend on it, and can be computed meanwhile."""
    forward, both = blocks(True, backward=False), blocks(True, backward=True)
    assert both.hidden_time > 0.7 * (gathered(both) - gathered(forward))


def unlike_weights(rows, hardware):
    """A loop of which each iteration gathers three weights in turn."""

    def fn(ws, x):
        def layer(h, w):
            for each in w:
                h = jnp.tanh(h @ each)
            return h, None

        return jax.lax.scan(layer, x, ws)[0]

    ws = [array(LAYERS, WIDTH, WIDTH, dtype=jnp.bfloat16) for _ in range(3)]
    tactics = [pt.ManualPartition({"x": 0}, "x"), pt.ManualPartition({"ws*": 2}, "x")]
    x = array(rows, WIDTH, dtype=jnp.bfloat16)
    return pt.plan(fn, ws, x, mesh="x=4", hardware=hardware, tactics=tactics).estimate


def test_each_product_hides_what_the_next_one_needs():
    estimate = unlike_weights(2**19, V5E)
    assert estimate.exposed_time == pytest.approx(gathered(estimate) / 3, rel=0.05)


def test_what_is_gathered_together_is_there_for_the_first():
    """XLA for GPUs makes one gather of three, which the iteration needs first."""
    estimate = unlike_weights(2**19, "h100")
    assert estimate.hidden_time < 0.1 * gathered(estimate)
    apart = msgspec.structs.replace(load("h100"), combined=())
    assert unlike_weights(2**19, apart).hidden_time > 0.6 * gathered(estimate)
