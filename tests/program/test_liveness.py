"""What nothing uses is dropped before planning, results of loops and branches included."""

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import numbers, runs_as_the_original


def accumulate(w, xs):
    """Gradients summed over micro-batches, whose losses are summed as well and not returned."""

    def step(sums, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
        return (sums[0] + loss, sums[1] + gradient), None

    (_, gradient), _ = jax.lax.scan(step, (0.0, jnp.zeros_like(w)), xs)
    return gradient


def nested(w, xs):
    """A sum that an inner loop adds up for an outer one that does not return it."""

    def outer(sums, x):
        def inner(sums, row):
            return (sums[0] + jnp.sum(row), sums[1] * 2 + row[: len(sums[1])]), None

        return jax.lax.scan(inner, sums, x)[0], None

    return jax.lax.scan(outer, (0.0, jnp.zeros(w.shape[0])), xs)[0][1] + jnp.sum(w, 1)


def branches(w, xs):
    """A branch whose second result is not read."""
    made = jax.lax.cond(
        xs[0, 0, 0] > 0, lambda w: (w * 2, jnp.sum(w)), lambda w: (w, jnp.max(w)), w
    )
    return made[0]


def needed_by_another(w, xs):
    """A count that is not returned, but without which what is returned would be another."""

    def step(sums, x):
        return (sums[0] + jnp.sum(x), sums[1] * sums[0]), None

    return jax.lax.scan(step, (0.0, w), xs)[0][1]


def stops_by_another(w, xs):
    """The value that ends the loop is not returned."""

    def step(state):
        return state[0] + jnp.sum(jnp.abs(xs)), state[1] * 2, state[2] + jnp.sum(state[1])

    return jax.lax.while_loop(lambda s: s[0] < 200, step, (0.0, w, 0.0))[1]


W, XS = numbers(8, 16), numbers(4, 16, 8, seed=1)


def data_parallel(fn, name="xs", dim=1):
    tactic = pt.ManualPartition({name: dim}, axis="data")
    return pt.plan(fn, W, XS, mesh={"data": 4}, hardware="cpu", tactics=[tactic])


def test_a_sum_that_a_loop_accumulates_for_nobody_is_not_reduced_over_the_mesh():
    plan = data_parallel(accumulate)
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", W.nbytes)]


def test_nested_loops_pass_on_only_what_is_used():
    plan = data_parallel(nested, "w", 1)
    assert not any(op.short == "reduce" and op.times > 1 for op in plan.program.operations)


def test_a_branch_computes_only_the_results_that_are_used():
    kinds = {op.short for op in data_parallel(branches, "w", 0).program.operations}
    assert "join" in kinds and "reduce" not in kinds


@pytest.mark.parametrize("fn", [needed_by_another, stops_by_another])
def test_what_a_used_result_depends_on_is_kept(fn):
    assert any(op.short == "reduce" for op in data_parallel(fn).program.operations)


@pytest.mark.parametrize("fn", [accumulate, nested, branches, needed_by_another, stops_by_another])
def test_the_plan_computes_what_the_original_does(fn):
    runs_as_the_original(data_parallel(fn), W, XS)


def test_an_accumulator_that_nothing_reads_takes_no_memory():
    def fn(w, xs):
        big = jnp.zeros((1024, 1024))
        return jax.lax.scan(lambda s, x: ((s[0] + x[0, 0], s[1] * 2), None), (big, w), xs)[0][1]

    plan = data_parallel(fn, "w", 0)
    assert plan.estimate.peak_memory < 1 << 20


def test_branches_without_results_go_with_what_they_depend_on():
    """A loop's results that only such a branch reads are dropped, and so must the branch be."""

    def count(w, xs):
        def body(state):
            i, seen, w = state
            jax.lax.switch(jnp.clip(seen, 0, 1), [lambda: None, lambda: None])
            return i + 1, seen + jnp.int32(xs[0, 0, 0] > 0), w * 2

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, 0, w))[2]

    plan = pt.plan(count, W, XS, mesh="x=2", hardware="cpu", tactics=[])
    assert not any(op.short == "case" for op in plan.program.operations)
    runs_as_the_original(plan, W, XS)
