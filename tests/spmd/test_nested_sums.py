"""Gradients that nested loops add up are reduced once, after the outermost loop.

A loop over micro-batches adds up gradients. Inside of it the layers of the model are unrolled, or a
loop whose backward pass writes the gradient of each layer into a stack. The micro-batch is sharded,
so each gradient is a partial sum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import array, numbers, planner, runs_as_the_original
from partita.spmd.instructions import Run, inside

MICRO, ROWS, LAYERS, WIDTH, WORDS = 3, 8, 4, 8, 32
XS = array(MICRO, ROWS, WIDTH)
TOKENS = array(MICRO, ROWS, dtype=jnp.int32)
MATRIX, STACK, TABLE = array(WIDTH, WIDTH), array(LAYERS, WIDTH, WIDTH), array(WORDS, WIDTH)

BATCH = pt.ManualPartition({"xs": 1}, axis="x")
plan = planner(mesh="x=4", tactics=[BATCH])


# ------------------------------------------------------------------------------------- models


def layer(x, w):
    return jnp.tanh(x @ w)


def unrolled(params, x):
    return jnp.mean(layer(layer(x, params["first"]), params["second"]) ** 2)


def scanned(params, x, layer=layer, **how):
    x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, params["w"], **how)
    return jnp.mean(x**2)


def remat(params, x):
    return scanned(params, x, jax.checkpoint(layer))


def in_pairs(params, x):
    return scanned(params, x, unroll=2)


def with_shared_weights(params, x):
    return scanned(params, x, lambda x, w: layer(x, w) + x @ params["shared"])


def tied(params, tokens):
    x, _ = lax.scan(lambda x, w: (layer(x, w), None), params["table"][tokens], params["w"])
    return jnp.mean(jax.nn.logsumexp(x @ params["table"].T, -1))


def narrow(model):
    """The same, with parameters and activations in bf16."""

    def loss(params, x):
        params, x = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (params, x))
        return model(params, x).astype(jnp.float32)

    return loss


def narrow_layers(params, x):
    def one(x, w):
        return layer(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)).astype(jnp.float32)

    return scanned(params, x, one)


# ------------------------------------------------------------------------------- accumulation


def accumulated(model, add=lambda total, grad: total + grad, start=jnp.zeros_like):
    """A function that adds up the gradients of micro-batches."""

    def step(params, xs):
        def one(total, x):
            return jax.tree.map(add, total, jax.grad(model)(params, x)), None

        return lax.scan(one, jax.tree.map(start, params), xs)[0]

    return step


def accumulated_wide(model):
    """Parameters are cast in the loop: gradients are bf16, their sum is f32."""

    def step(params, xs):
        def one(total, x):
            cast = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            grads = jax.grad(model)(cast, x.astype(jnp.bfloat16))
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads), None

        return lax.scan(one, jax.tree.map(jnp.zeros_like, params), xs)[0]

    return step


def wide_loss(model):
    return lambda params, x: model(params, x).astype(jnp.float32)


def gradient(w, x):
    return jax.grad(lambda w: jnp.mean(layer(x, w) ** 2))(w)


def partial_sum(w, x):
    return jnp.sum(x[:, :, None] * w, 0)


def largest(w, x):
    return jnp.max(x[:, :, None] * w, 0)


def written(make, layers=LAYERS, start=jnp.zeros_like):
    """Stacks that an inner loop writes slice by slice: `make(w, x)` of each layer."""

    def stack(ws, x):
        def one(n, found):
            return lax.dynamic_update_index_in_dim(found, make(ws[n], x), n, 0)

        return lax.fori_loop(0, layers, one, start(ws))

    return stack


def combined(stack, combine=jnp.add):
    """A function that combines the stacks of all micro-batches."""

    def step(w, xs):
        def one(n, total):
            return combine(total, stack(w, xs[n]))

        return lax.fori_loop(0, MICRO, one, jnp.zeros_like(w))

    return step


def collectives(fn, params, xs=XS, tactics=(), tolerance=1e-5):
    """Collectives of a plan that computes what the original does: kind, shape in f32, count."""
    made = plan(fn, params, xs, tactics=[BATCH, *tactics])
    leaves, tree = jax.tree.flatten(params)
    params = tree.unflatten([numbers(*each.shape, seed=n) for n, each in enumerate(leaves)])
    batch = numbers(*xs.shape, seed=9)
    if xs.dtype == jnp.int32:
        batch = np.random.default_rng(9).integers(0, WORDS, xs.shape, np.int32)
    runs_as_the_original(made, params, batch, tolerance=tolerance)
    return sorted((c.kind, c.bytes, c.count, c.dtype) for c in made.collectives)


def once(*types):
    """One all_reduce of each of these types, after all loops."""
    return sorted(("all_reduce", 4 * int(np.prod(each.shape)), 1, "f32") for each in types)


SCANNED = {"w": STACK}


@pytest.mark.parametrize(
    ("fn", "params", "xs"),
    [
        pytest.param(
            accumulated(unrolled), {"first": MATRIX, "second": MATRIX}, XS, id="unrolled layers"
        ),
        pytest.param(accumulated(scanned), SCANNED, XS, id="scanned layers"),
        pytest.param(accumulated(in_pairs), SCANNED, XS, id="scanned layers, two an iteration"),
        pytest.param(
            accumulated(with_shared_weights),
            {"w": STACK, "shared": MATRIX},
            XS,
            id="scanned layers that share a weight",
        ),
        pytest.param(accumulated(tied), {"w": STACK, "table": TABLE}, TOKENS, id="tied weights"),
        pytest.param(accumulated(remat), SCANNED, XS, id="checkpointed layers"),
        pytest.param(
            accumulated(scanned, lambda total, g: g + total), SCANNED, XS, id="gradient + total"
        ),
        pytest.param(
            accumulated(scanned, lambda total, g: total + g / MICRO), SCANNED, XS, id="mean"
        ),
        pytest.param(combined(written(gradient)), STACK, XS, id="a stack written by hand"),
        pytest.param(combined(written(partial_sum)), STACK, XS, id="a stack of sums"),
    ],
)
def test_gradients_are_reduced_once_after_the_outer_loop(fn, params, xs):
    assert collectives(fn, params, xs) == once(*jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("fn", "params"),
    [
        pytest.param(
            accumulated_wide(wide_loss(unrolled)),
            {"first": MATRIX, "second": MATRIX},
            id="unrolled layers",
        ),
        pytest.param(accumulated_wide(wide_loss(scanned)), SCANNED, id="scanned layers"),
        pytest.param(accumulated(narrow(scanned)), SCANNED, id="widened with the loss"),
        pytest.param(accumulated(narrow_layers), SCANNED, id="widened before it is written"),
    ],
)
def test_narrow_gradients_are_added_up_wide_and_reduced_once(fn, params):
    """Casting is linear; the accumulator is f32, so one f32 sum replaces one in bf16 per step."""
    assert collectives(fn, params, tolerance=2e-3) == once(*params.values())


def test_three_loops_hand_the_sum_out():
    def fn(params, xs):
        def one(total, scale):
            sums = accumulated(scanned)(params, xs * scale)
            return jax.tree.map(jnp.add, total, sums), None

        return lax.scan(one, jax.tree.map(jnp.zeros_like, params), jnp.arange(1.0, 3.0))[0]

    assert collectives(fn, SCANNED) == once(STACK)


# ------------------------------------------------------------------------ where it must be before

STACK_BYTES, SLICE_BYTES = 4 * LAYERS * WIDTH**2, 4 * WIDTH**2


def clipped(total, stack):
    return total + stack / jnp.maximum(1.0, jnp.sqrt(jnp.sum(stack**2)))


@pytest.mark.parametrize("combine", [clipped, jnp.maximum, jnp.minimum])
def test_a_stack_that_is_not_just_added_is_reduced_in_every_outer_iteration(combine):
    """The inner loop still hands it out unreduced: one collective for all of its slices."""
    found = collectives(combined(written(partial_sum), combine), STACK)
    assert found == [("all_reduce", STACK_BYTES, MICRO, "f32")]


def test_a_stack_of_maxima_holds_maxima_of_all_devices():
    """Maxima of parts are no parts of a sum."""
    found = collectives(combined(written(largest)), STACK)
    assert found == [("all_reduce", SLICE_BYTES, MICRO * LAYERS, "i32")]


def test_a_stack_that_starts_from_ones_holds_whole_values():
    """Devices would add up the ones that are not overwritten, as far as anybody knows."""
    found = collectives(combined(written(gradient, start=jnp.ones_like)), STACK)
    assert found == [("all_reduce", SLICE_BYTES, MICRO * LAYERS, "f32")]


def test_a_stack_of_which_little_is_written_is_reduced_slice_by_slice():
    """Where reducing the stack would send the rest of it, too; in a sum or not."""
    for combine in (jnp.add, clipped):
        found = collectives(combined(written(gradient, layers=2), combine), STACK)
        assert found == [("all_reduce", SLICE_BYTES, MICRO * 2, "f32")]


def test_a_stack_that_no_outer_loop_adds_up_is_reduced_slice_by_slice():
    """As many bytes, and the collective of one layer can run while the next one computes."""
    found = collectives(lambda w, xs: written(gradient)(w, xs[0]), STACK)
    assert found == [("all_reduce", SLICE_BYTES, LAYERS, "f32")]


def test_a_stack_that_the_loop_reads_holds_whole_slices():
    def stack(ws, x):
        def one(n, found):
            made = partial_sum(ws[n], x) + jnp.tanh(found[0])
            return lax.dynamic_update_index_in_dim(found, made, n, 0)

        return lax.fori_loop(0, LAYERS, one, jnp.zeros_like(ws))

    found = collectives(combined(stack), STACK)
    assert found == [("all_reduce", SLICE_BYTES, MICRO * LAYERS, "f32")]


def test_narrow_slices_that_must_be_reduced_in_the_loop_stay_narrow():
    """Were they widened first, each outer iteration would send twice the bytes."""

    def cast(w, x):
        return gradient(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(jnp.float32)

    (found,) = plan(combined(written(cast), clipped), STACK, XS).collectives
    assert (found.count, found.bytes, found.dtype) == (MICRO * LAYERS, SLICE_BYTES // 2, "bf16")


def test_accumulators_that_are_sharded_are_scattered_into_in_the_loop():
    """FSDP: the layout of the carried values is decided, and a quarter of them is held."""
    shards = pt.ManualPartition({"params*": 2, "result*": 2}, axis="x")
    made = plan(accumulated(scanned), SCANNED, XS, tactics=[BATCH, shards])
    assert [(c.count, c.bytes) for c in made.collectives if c.kind == "reduce_scatter"] == [
        (MICRO * LAYERS, SLICE_BYTES)
    ]
    writes = [
        made.spmd.buffers[item.outputs[0]].type.shape
        for item in inside(made.spmd.instructions)
        if isinstance(item, Run) and made.spmd.program.operations[item.op].traits.writes_window
    ]
    assert writes[-1] == (LAYERS, WIDTH, WIDTH // 4)


def test_folded_and_unfolded_programs_agree(bench):
    """Classes of operations are decided as their members are."""
    types = {"w": "f32[4,8,8]"}, "f32[3,8,8]"
    found = []
    for folded in (False, True):
        each = bench(accumulated(scanned), *types, mesh="x=4", folded=folded)
        found.append(each.lowerer.lower(each.tile(("xs", 1, "x"))).counts())
    assert found == [{"all_reduce": 1}] * 2
