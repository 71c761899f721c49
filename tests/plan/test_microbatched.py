"""Micro-batches: examples stay where they are, and the report says where they would not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import array, numbers, planner, runs_as_the_original

plan = planner(mesh="data=4", tactics=[pt.DataParallel(axis="data", patterns="batch*")])


def accumulated(split):
    """A gradient step that adds up over micro-batches made by `split`."""

    def step(params, batch):
        def add(total, part):
            gradient = jax.grad(lambda p: jnp.mean((part["x"] @ p - part["y"]) ** 2))(params)
            return total + gradient, None

        return jax.lax.scan(add, jnp.zeros_like(params), split(batch))[0]

    return step


def majors_first(steps):
    return lambda batch: jax.tree.map(
        lambda a: a.reshape(steps, a.shape[0] // steps, *a.shape[1:]), batch
    )


W, BATCH = numbers(16, 8), {"x": numbers(64, 16, seed=1), "y": numbers(64, 8, seed=2)}


@pytest.mark.parametrize("steps", [2, 4, 8, 16])
def test_micro_batches_cost_one_all_reduce_of_the_gradient(steps):
    p = plan(accumulated(lambda batch: pt.microbatched(batch, steps)), W, BATCH)
    assert [(c.kind, c.bytes, c.count) for c in p.collectives] == [("all_reduce", W.nbytes, 1)]
    runs_as_the_original(p, W, BATCH)


def test_each_micro_batch_has_every_steps_th_example():
    made = pt.microbatched({"a": np.arange(12).reshape(6, 2), "b": [np.arange(6)]}, 3)
    assert made["a"].shape == (3, 2, 2)
    assert made["b"][0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_gradient_is_that_of_the_usual_micro_batches():
    ours, usual = (
        accumulated(split)(W, BATCH)
        for split in (lambda batch: pt.microbatched(batch, 4), majors_first(4))
    )
    np.testing.assert_allclose(ours, usual, rtol=1e-5)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (2, lambda entry: [str(refusal) for refusal in entry.refused]),  # 4 devices do not fit
        (8, lambda entry: entry.warnings),  # they do, and the loop exchanges
    ],
)
def test_where_they_are_gathered_the_report_says_what_to_write(steps, told):
    entry = plan(accumulated(majors_first(steps)), W, BATCH).history[0]
    better = (
        f"reshaped to {64 // steps} x {steps} instead, and these dimensions swapped, it would stay "
        f"where it is; pt.microbatched(x, {steps}) does that"
    )
    assert any(better in text and "test_microbatched.py:" in text for text in told(entry))


@pytest.mark.parametrize(
    ("tree", "steps", "message"),
    [
        (
            {"x": array(6, 2)},
            4,
            r"\['x'\] has 6 examples, which steps=4 micro-batches cannot share equally",
        ),
        (np.float32(1), 2, "the array has no dimension"),
        (np.ones(4), 0, "steps=0: expected how many"),
        (np.ones(4), "2", "steps='2': expected how many"),
    ],
)
def test_what_cannot_be_shared_equally_is_refused(tree, steps, message):
    with pytest.raises(pt.SpecError, match=message):
        pt.microbatched(tree, steps)
