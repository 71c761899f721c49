"""Kernels: which values are stored, what a kernel reads, and in which order kernels run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from partita.analysis import analyse
from partita.cost.fusion import analyse_fusion


@pytest.fixture
def fusion(program):
    def fusion(fn, *types, donate=()):
        made = program(fn, *types, donate=donate)
        return analyse_fusion(made, analyse(made).uses)

    return fusion


def kinds(fusion, operations):
    return [fusion.program.operations[op].short for op in operations]


def stored(fusion):
    """The kinds that make the stored values, in program order, arguments left out."""
    values = fusion.program.values
    return kinds(
        fusion, [v.producer for v in values if fusion.stored[v.index] and v.producer is not None]
    )


def two_readers(make):
    """A value that is read twice, each time inside a reduction."""

    def fn(x, y):
        made = make(x, y)
        return jnp.sum(made), jnp.max(made)

    return fn


F = "f32[4,8]"

# name, function, types, kinds of the stored values
STORED = [
    (
        "a chain of elementwise operations is one kernel",
        lambda x: jnp.tanh(2 * x + 1),
        [F],
        ["tanh"],
    ),
    ("a chain under a reduction", lambda x: jnp.sum(jnp.tanh(2 * x)), [F], ["reduce"]),
    (
        "what a dot reads is stored",
        lambda x, w: jnp.tanh(x) @ w,
        [F, "f32[8,8]"],
        ["tanh", "dot_general"],
    ),
    (
        "but a dot reads through converts and transposes",
        lambda x, w: x.astype(jnp.bfloat16) @ w.T,
        [F, "bf16[2,8]"],
        ["dot_general"],
    ),
    (
        "a dot's result is stored",
        lambda x, w: jnp.tanh(x @ w),
        [F, "f32[8,8]"],
        ["dot_general", "tanh"],
    ),
    (
        "a cheap value with two readers is computed twice",
        two_readers(lambda x, y: 2 * x),
        [F, F],
        ["reduce", "reduce"],
    ),
    (
        "an expensive value with two readers is stored",
        two_readers(lambda x, y: jnp.tanh(x)),
        [F, F],
        ["tanh", "reduce", "reduce"],
    ),
    (
        "a value made from two large ones is stored rather than read twice",
        two_readers(lambda x, y: x + y),
        [F, F],
        ["add", "reduce", "reduce"],
    ),
    (
        "a small second input does not count",
        two_readers(lambda x, y: x + y),
        ["f32[16,8]", "f32[8]"],
        ["reduce", "reduce"],
    ),
    (
        "a result is stored even if cheap",
        lambda x: (2 * x, jnp.tanh(2 * x)),
        [F],
        ["multiply", "tanh"],
    ),
    ("a gather's result is stored", lambda x: jnp.tanh(x[jnp.arange(3)]), [F], ["gather", "tanh"]),
]


@pytest.mark.parametrize(
    ("fn", "types", "expected"), [row[1:] for row in STORED], ids=[row[0] for row in STORED]
)
def test_stored_values(fusion, fn, types, expected):
    found = stored(fusion(fn, *types))
    # JAX may normalise indices first; what that stores is small and not meant here.
    assert [kind for kind in found if kind not in ("select", "concatenate")] == expected


def test_arguments_are_stored_and_constants_are_not(fusion):
    made = fusion(lambda x, unused: x + 1, F, F)
    assert [made.stored[v] for v in made.program.arguments] == [True, True]
    assert stored(made) == ["add"]


def test_a_residual_chain_is_stored_link_by_link(fusion):
    """Each sum is read by the block on top of it and by the next sum. Computing it again would
    read all that came before, so it is stored."""

    def fn(x, *blocks):
        for w in blocks:
            x = x + jnp.tanh(x @ w)
        return jnp.sum(x)

    made = fusion(fn, "f32[4,4]", "f32[4,4]", "f32[4,4]", "f32[4,4]")
    # The last sum has one reader and is computed inside of the reduction.
    assert stored(made) == ["dot_general", "add", "dot_general", "add", "dot_general", "reduce"]


def test_a_kernel_reads_each_stored_value_once_through_what_it_computes(fusion):
    made = fusion(lambda x, y: jnp.sum(2 * x + y * x), F, F)
    (kernel,) = made.kernels
    assert sorted(made.inputs(kernel)) == [0, 1]
    # Everything is computed inside of that kernel.
    assert set(made.inside) == set(range(len(made.program.operations)))
    assert all(kernels == [kernel] for kernels in made.inside.values())


def test_a_cheap_producer_is_inside_every_kernel_that_reads_it(fusion):
    made = fusion(two_readers(lambda x, y: 2 * x), F, F)
    double = next(op.index for op in made.program.operations if op.short == "multiply")
    assert made.inside[double] == list(made.kernels) and len(made.kernels) == 2


# -------------------------------------------------------------------------------- the order


def order(fusion):
    return kinds(fusion, sorted(fusion.order, key=fusion.order.__getitem__))


def test_without_donation_kernels_run_in_program_order(fusion):
    made = fusion(lambda x, w: (jnp.tanh(x @ w), jnp.sin(x @ w.T)), F, "f32[8,8]")
    assert sorted(made.order, key=made.order.__getitem__) == list(made.kernels)


def test_an_update_runs_as_soon_as_its_gradient_is_there(fusion):
    """The program computes all gradients and then all updates. An update that writes into its
    donated parameter needs no memory and frees the gradient, so it does not wait."""

    def step(params, x):
        gradients = [x.T @ (x @ w) for w in params]
        return [w - 0.1 * g for w, g in zip(params, gradients, strict=True)]

    params = ["f32[8,8]", "f32[8,8]", "f32[8,8]"]
    chain = ["dot_general", "dot_general"]
    waiting = fusion(step, params, F)
    assert kinds(waiting, waiting.kernels) == chain * 3 + ["subtract"] * 3
    donated = fusion(step, params, F, donate=0)
    assert order(donated) == [*chain, "subtract"] * 3


def test_a_whole_train_step_updates_behind_each_gradient(gpt_program):
    """Of a GPT's train step, no two large gradients wait for their updates at the end."""
    program = gpt_program(2)
    made = analyse_fusion(program, analyse(program).uses)
    updated = {program.results[r] for r in program.aliases.values()}
    places = sorted(
        made.order[program.values[v].producer]
        for v in updated
        if program.values[v].producer in made.order
    )
    # Updates are spread over the backward pass rather than bunched behind it.
    assert places[0] < len(made.order) * 0.75
    assert sorted(made.order.values()) == list(range(len(made.kernels)))


def test_a_kernel_never_runs_before_what_it_reads(gpt_program):
    program = gpt_program(2)
    made = analyse_fusion(program, analyse(program).uses)
    made_by = {v: k for k in made.kernels for v in program.operations[k].results}
    for kernel in made.kernels:
        for value in made.inputs(kernel):
            if value in made_by:
                assert made.order[made_by[value]] < made.order[kernel]


def test_jax_is_not_asked_to_run(fusion):
    """Fusion is read from the program alone."""
    made = fusion(lambda x: jnp.tanh(x), jax.ShapeDtypeStruct((2**20, 2**20), jnp.float32))
    assert stored(made) == ["tanh"]
