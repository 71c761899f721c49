"""Kernels: which values are stored, what a kernel reads, and in which order kernels run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import partita as pt
from partita.analysis import analyse
from partita.cost.devices.hardware import ALONE, Kernels
from partita.cost.kernels.fusion import analyse_fusion


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


def three_readers(make, first=lambda x, y: jnp.min(x)):
    """A value that is read three times, the last two inside reductions."""

    def fn(x, y):
        made = make(x, y)
        return first(made, y), jnp.sum(made), jnp.max(made)

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
        "a dot computes what it reads",
        lambda x, w: jnp.tanh(x).astype(jnp.bfloat16) @ w.T,
        [F, "bf16[2,8]"],
        ["dot_general"],
    ),
    (
        "a dot's kernel goes on with its result",
        lambda x, w: jnp.tanh(x @ w),
        [F, "f32[8,8]"],
        ["tanh"],
    ),
    (
        "and with one of two results that are added",
        lambda x, w: x @ w + x @ w.T,
        [F, "f32[8,8]"],
        ["dot_general", "add"],
    ),
    (
        "but not if that has to wait for something else",
        lambda x, w: x @ w + jnp.sum(x * 2),
        [F, "f32[8,8]"],
        ["dot_general", "reduce", "add"],
    ),
    (
        "what is done with a dot's result and read twice is stored",
        two_readers(lambda x, w: jnp.tanh(x @ w)),
        [F, "f32[8,8]"],
        ["tanh", "reduce", "reduce"],
    ),
    (
        "unless the result is narrower",
        two_readers(lambda x, w: (x @ w).astype(jnp.float32)),
        ["bf16[4,8]", "bf16[8,8]"],
        ["dot_general", "reduce", "reduce"],
    ),
    (
        "a softmax of short rows stays in the dot's kernel up to its exponentials",
        lambda x, w: jax.nn.softmax((x @ w).astype(jnp.float32)),
        ["bf16[4,8]", "bf16[8,8]"],
        ["reduce", "exponential", "reduce", "divide"],
    ),
    (
        "of long rows, the dot's result is stored",
        lambda x, w: jax.nn.softmax((x @ w).astype(jnp.float32)),
        ["bf16[4,8]", "bf16[8,4096]"],
        ["dot_general", "reduce", "reduce", "divide"],
    ),
    (
        "a cheap value with two readers is computed twice",
        two_readers(lambda x, y: 2 * x),
        [F, F],
        ["reduce", "reduce"],
    ),
    (
        "an expensive one, too",
        two_readers(lambda x, y: jnp.tanh(x)),
        [F, F],
        ["reduce", "reduce"],
    ),
    (
        "reading two values twice is less than writing a third and reading it twice",
        two_readers(lambda x, y: x + y),
        [F, F],
        ["reduce", "reduce"],
    ),
    (
        "with three readers it is not",
        three_readers(lambda x, y: x + y),
        [F, F],
        ["add", "reduce", "reduce", "reduce"],
    ),
    (
        "a wider form is computed again from the narrower one",
        three_readers(lambda x, y: (x + y).astype(jnp.float32)),
        ["bf16[4,8]", "bf16[4,8]"],
        ["add", "reduce", "reduce", "reduce"],
    ),
    (
        "of products that are added up and widened, the narrow sum",
        two_readers(lambda x, w: (x @ w + w @ x).astype(jnp.float32)),
        ["bf16[8,8]", "bf16[8,8]"],
        ["dot_general", "add", "reduce", "reduce"],
    ),
    (
        "of a product that is only transposed, the transpose",
        lambda x, w: jnp.sort((x @ w).T),
        [F, "f32[8,8]"],
        ["transpose", "sort"],
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
    (
        "a gather reads memory, other readers of a wider form the narrower one",
        three_readers(lambda x, i: x.astype(jnp.float32), lambda x, i: x[i[0]]),
        ["bf16[4,8]", "i32[1,3]"],
        ["convert", "gather", "reduce", "reduce"],
    ),
    (
        "a scatter of one element into each row of zeros is a comparison",
        jax.grad(lambda x, i: jnp.sum(jnp.take_along_axis(x, i, 1) ** 2)),
        [F, "i32[4,1]"],
        ["reduce", "gather", "multiply", "scatter"],
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


def quotients(x, w):
    return (x / jnp.sum(x, 1, keepdims=True)) @ w


@pytest.mark.parametrize(
    ("fn", "kernels", "expected"),
    [
        (quotients, Kernels(True, ""), ["reduce", "dot_general"]),
        (quotients, Kernels(True, "", ("divide",)), ["reduce", "divide", "dot_general"]),
        # By a constant is a product.
        (lambda x, w: (x / 3) @ w, Kernels(True, "", ("divide",)), ["dot_general"]),
        (lambda x, w: jnp.tanh(x @ w), ALONE, ["dot_general", "tanh"]),
        (lambda x, w: jnp.tanh(x) @ w, ALONE, ["tanh", "dot_general"]),
    ],
)
def test_what_products_compute_depends_on_the_compiler(program, fn, kernels, expected):
    made = program(fn, F, "f32[8,8]")
    assert stored(analyse_fusion(made, analyse(made).uses, kernels)) == expected


def test_what_a_loop_reads_of_outside_is_stored_in_its_narrowest_form(fusion):
    def fn(x, w):
        mask = jnp.broadcast_to(jnp.tanh(w[0]), (64, 4, 8))  # read in each iteration
        return jax.lax.fori_loop(0, 3, lambda i, c: c + mask * c, x)

    made = fusion(fn, "f32[64,4,8]", "f32[4,8]")
    kept = [
        v.type.shape
        for v in made.program.values
        if made.stored[v.index] and v.producer is not None and v.type.dtype == "f32"
    ]
    assert (8,) in kept and kept.count((64, 4, 8)) == 4  # the carried value's four


def test_arguments_are_stored_and_constants_are_not(fusion):
    made = fusion(lambda x, unused: x + 1, F, F)
    assert [made.stored[v] for v in made.program.arguments] == [True, True]
    assert stored(made) == ["add"]


def test_a_residual_chain_is_stored_link_by_link(fusion):
    """Each sum is read by the block on top of it and by the next sum. Computing it again would
    read all that came before, so it is stored; the kernels of the products compute it."""

    def fn(x, *blocks):
        for w in blocks:
            x = x + jnp.tanh(x @ w)
        return jnp.sum(x)

    made = fusion(fn, "f32[4,4]", "f32[4,4]", "f32[4,4]", "f32[4,4]")
    assert stored(made) == ["add", "add", "add", "reduce"]


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


def test_a_constraint_of_what_is_in_memory_is_a_kernel_that_does_nothing(fusion):
    made = fusion(lambda x: (pt.constrain(x, P("x")), jnp.sort(x)), F)
    constraint, _ = made.kernels
    assert kinds(made, made.kernels) == ["sharding_constraint", "sort"]
    assert made.free == {constraint}


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
        gradients = [jnp.sort(x.T @ (x @ w)) for w in params]
        return [w - 0.1 * g for w, g in zip(params, gradients, strict=True)]

    params = ["f32[8,8]", "f32[8,8]", "f32[8,8]"]
    chain = ["dot_general", "dot_general", "sort"]
    waiting = fusion(step, params, F)
    assert kinds(waiting, waiting.kernels) == chain * 3 + ["subtract"] * 3
    donated = fusion(step, params, F, donate=0)
    assert order(donated) == [*chain, "subtract"] * 3


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(8, ["sort", "dot_general", "reduce"]), (9, ["sort", "reduce", "dot_general"])],
)
def test_a_kernel_runs_early_only_if_it_frees_what_it_allocates(fusion, columns, expected):
    """The product is the only reader of what is sorted, of 8 columns."""

    def fn(x, y, w):
        ranked = jnp.sort(x)
        return jnp.sum(y), ranked @ w

    assert order(fusion(fn, "f32[8,8]", F, f"f32[8,{columns}]")) == expected


def test_what_a_products_kernel_goes_on_with_is_done_with_it(fusion):
    """Updates of gradients that are products: no product waits for its update."""

    def step(params, x):
        gradients = [x.T @ (x @ w) for w in params]
        return [w - 0.1 * g for w, g in zip(params, gradients, strict=True)]

    made = fusion(step, ["f32[8,8]", "f32[8,8]"], F)
    assert order(made) == ["dot_general", "subtract"] * 2


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
    # Updates are propagated over the backward pass rather than bunched behind it.
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
