"""Lowering: which collectives a tiling needs, and where sums are reduced."""

from __future__ import annotations

import random

import jax.numpy as jnp
import pytest
from jax import lax

from partita.analysis import discrete
from partita.spmd import Lowerer, Reshard, unfold
from partita.spmd.instructions import While
from partita.tiling import Propagator, Tiling, untiled

INNER = ("a", 1, "x")  # the contracted dimension of the first matrix


def reshards(spmd):
    """The reshards as text, each with the kind of operation that made the value: `kind(op)`."""
    program, found = spmd.program, []
    for each in (item for item in spmd.instructions if hasattr(item, "step")):
        value = program.values[spmd.buffers[each.input].value]
        made = "argument" if value.producer is None else program.operations[value.producer].short
        found.append(f"{each.step.kind}({made}) {each.step.before.dtype}")
    return found


def matrices(count):
    """Types of `count` pairs of matrices to multiply."""
    return ["f32[8,16]", "f32[16,8]"] * count


# -------------------------------------------------------------------------- unreduced values


@pytest.mark.parametrize(
    ("fn", "types", "expected"),
    [
        # A sharded sum leaves unreduced values behind, reduced at the end.
        (lambda a, b: a @ b, matrices(1), ["all_reduce(dot_general) f32"]),
        (lambda a: a.sum(1), ["f32[8,16]"], ["all_reduce(reduce) f32"]),
        (lambda a: a.max(1), ["f32[8,16]"], ["all_reduce(reduce) f32"]),
        # They stay so through linear operations.
        (lambda a, b: (a @ b).T, matrices(1), ["all_reduce(transpose) f32"]),
        (lambda a, b: -(a @ b), matrices(1), ["all_reduce(negate) f32"]),
        (lambda a, b: (a @ b) * 2.0, matrices(1), ["all_reduce(multiply) f32"]),
        (lambda a, b: (a @ b) / 2.0, matrices(1), ["all_reduce(divide) f32"]),
        (lambda a, b: (a @ b).sum(0), matrices(1), ["all_reduce(reduce) f32"]),
        (lambda a, b: (a @ b)[1:3], matrices(1), ["all_reduce(slice) f32"]),
        (lambda a, b: (a @ b).reshape(64), matrices(1), ["all_reduce(reshape) f32"]),
        # They are reduced before an operation that is not linear.
        (lambda a, b: jnp.tanh(a @ b), matrices(1), ["all_reduce(dot_general) f32"]),
        (lambda a, b: 2.0 / (a @ b), matrices(1), ["all_reduce(dot_general) f32"]),
        (lambda a, b: (a @ b).max(0), matrices(1), ["all_reduce(dot_general) f32"]),
        (lambda a, b: (a @ b) + 1.0, matrices(1), ["all_reduce(dot_general) f32"]),
        (
            lambda a, b, c: (a @ b) @ c,
            [*matrices(1), "f32[8,4]"],
            ["all_reduce(dot_general) f32"],
        ),
        # An unreduced maximum is no sum.
        (lambda a: a.max(1) * 2.0, ["f32[8,16]"], ["all_reduce(reduce) f32"]),
        # They are reduced before an operation that makes them larger in bytes.
        (
            lambda a: jnp.broadcast_to(a.sum(1)[:, None], (8, 4)),
            ["f32[8,16]"],
            ["all_reduce(reduce) f32"],
        ),
        (
            lambda a, b: (a @ b).astype(jnp.float32),
            ["bf16[8,16]", "bf16[16,8]"],
            ["all_reduce(dot_general) bf16"],
        ),
        (
            lambda a, b: (a @ b).astype(jnp.float32) * 2.0,
            ["bf16[8,16]", "bf16[16,8]"],
            ["all_reduce(dot_general) bf16"],
        ),
        (
            lambda a, b: (a @ b).astype(jnp.bfloat16),
            matrices(1),
            ["all_reduce(convert) bf16"],
        ),
        # They are reduced once before several uses.
        (
            lambda a, b: ((y := a @ b), y * 2.0),
            matrices(1),
            ["all_reduce(dot_general) f32"],
        ),
        (
            lambda a, b: -(y := a @ b) + y.T,
            matrices(1),
            ["all_reduce(dot_general) f32"],
        ),
    ],
    ids=[
        *("matmul", "sum", "max"),
        *("transpose", "negate", "multiply", "divide", "sum of", "slice", "reshape"),
        *("tanh", "denominator", "max of", "add a whole value", "matmul of", "max scaled"),
        *("broadcast", "widen", "widen and scale", "narrow", "result and use", "two uses"),
    ],
)
def test_where_a_unreduced_value_is_reduced(bench, fn, types, expected):
    b = bench(fn, *types, mesh="x=4")
    assert reshards(b.spmd(INNER)) == expected


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda a, b, c, d: a @ b + c @ d, ["all_reduce(add) f32"]),
        (lambda a, b, c, d: a @ b - (c @ d).T, ["all_reduce(subtract) f32"]),
        (lambda a, b, c, d: (a @ b + c @ d) * 2.0, ["all_reduce(multiply) f32"]),
        (lambda a, b, c, d: (a @ b) * (c @ d), ["all_reduce(dot_general) f32"] * 2),
        (lambda a, b, c, d: jnp.tanh(a @ b) + c @ d, ["all_reduce(dot_general) f32"] * 2),
    ],
    ids=["add", "subtract", "add and scale", "multiply", "one is not linear"],
)
def test_two_unreduced_values_that_are_added_are_reduced_together(bench, fn, expected):
    b = bench(fn, *matrices(2), mesh="x=4")
    assert reshards(b.spmd(INNER, ("c", 1, "x"))) == expected


def add_products(a, b, c, d):
    return a @ b + c @ d


# Other sizes than the first pair's, so that the contracted dimensions are decided apart.
PAIR_AND_LONGER_PAIR = [*matrices(1), "f32[8,32]", "f32[32,8]"]


def test_a_unreduced_value_added_to_a_whole_one_is_reduced_first(bench):
    b = bench(add_products, *PAIR_AND_LONGER_PAIR, mesh="x=4")
    assert reshards(b.spmd(INNER)) == ["all_reduce(dot_general) f32"]


def test_values_unreduced_over_different_axes_are_reduced_before_they_are_added(bench):
    b = bench(add_products, *PAIR_AND_LONGER_PAIR, mesh="x=2,y=2")
    spmd = b.spmd(INNER, ("c", 1, "y"))
    assert [c.axes for c in spmd.collectives] == [("x",), ("y",)]


def test_of_two_axes_the_common_one_is_reduced_after_the_addition(bench):
    b = bench(add_products, *PAIR_AND_LONGER_PAIR, mesh="x=2,y=2")
    spmd = b.spmd(INNER, ("c", 1, "x"), ("c", 1, "y"))
    assert reshards(spmd) == ["all_reduce(dot_general) f32", "all_reduce(add) f32"]
    assert [c.axes for c in spmd.collectives] == [("y",), ("x",)]


def scaled_rows(a, b, s):
    return (a @ b) * s


def test_a_unreduced_value_is_scattered_before_an_operation_that_works_along_its_axis(bench):
    b = bench(scaled_rows, "f32[8,16]", "f32[16,8]", "f32[8,8]", mesh="x=4")
    spmd = b.spmd(INNER, ("s", 0, "x"))
    assert reshards(spmd) == ["reduce_scatter(dot_general) f32"]


def sum_scaled(a, b, c, d, s):
    return (a @ b + c @ d) * s


def test_an_addition_of_unreduced_values_gives_way_and_one_scatter_follows(bench):
    b = bench(sum_scaled, *matrices(2), "f32[8,8]", mesh="x=4")
    spmd = b.spmd(INNER, ("c", 1, "x"), ("s", 0, "x"))
    assert reshards(spmd) == ["reduce_scatter(add) f32"]


def test_an_addition_of_one_unreduced_value_does_not_give_way(bench):
    b = bench(sum_scaled, *PAIR_AND_LONGER_PAIR, "f32[8,8]", mesh="x=4")
    spmd = b.spmd(INNER, ("s", 0, "x"))
    # `c` takes the axis on its rows, so its product is whole along it and made in rows.
    assert reshards(spmd) == ["reduce_scatter(dot_general) f32"]


def updated(w, x, y):
    """A weight less its gradient, which a product makes in the other order."""
    return w - lax.dot_general(y, x, (((0,), (0,)), ((), ()))).T


def test_a_transposed_product_is_scattered_after_the_transpose(bench):
    b = bench(updated, "f32[16,8]", "f32[32,16]", "f32[32,8]", mesh="x=4")
    spmd = b.spmd(("x", 0, "x"), ("w", 0, "x"))
    assert reshards(spmd) == ["reduce_scatter(transpose) f32"]


def test_what_else_is_transposed_is_scattered_before(bench):
    b = bench(lambda w, x: w - jnp.sum(x, 0).T, "f32[16,8]", "f32[32,8,16]", mesh="x=4")
    spmd = b.spmd(("x", 0, "x"), ("w", 0, "x"))
    assert reshards(spmd) == ["reduce_scatter(reduce) f32"]


@pytest.mark.parametrize(
    ("fn", "types"),
    [
        (lambda a, b: lax.div(a @ b, jnp.int32(3)), ["i32[8,16]", "i32[16,8]"]),
        (lambda a, b: (a @ b).astype(jnp.float32), ["i32[8,16]", "i32[16,8]"]),
    ],
    ids=["integer division rounds", "integers wrap around, floats do not"],
)
def test_integer_operations_that_are_not_linear(bench, fn, types):
    b = bench(fn, *types, mesh="x=4")
    assert reshards(b.spmd(INNER)) == ["all_reduce(dot_general) i32"]


# ------------------------------------------------------------------- gathers, and what is free


def test_a_weight_is_gathered_before_its_use(bench):
    b = bench(lambda x, w: x @ w, "f32[8,16]", "f32[16,8]", mesh="data=4")
    spmd = b.spmd(("x", 0, "data"), ("w", 0, "data"))
    assert reshards(spmd) == ["all_gather(argument) f32"]
    assert spmd.argument_layouts == (((0,), ()), ((0,), ()))
    assert spmd.result_layouts == (((0,), ()),)


def test_a_weight_is_converted_then_gathered(bench):
    b = bench(lambda x, w: x @ w.astype(jnp.bfloat16), "bf16[8,16]", "f32[16,8]", mesh="data=4")
    spmd = b.spmd(("x", 0, "data"), ("w", 0, "data"))
    assert reshards(spmd) == ["all_gather(convert) bf16"]
    assert [c.bytes for c in spmd.collectives] == [16 * 8 * 2]


def test_a_gradient_is_scattered_to_where_its_weight_is_kept(bench):
    def step(w, x):
        return w - x.T @ (x @ w)

    b = bench(step, "f32[16,4]", "f32[8,16]", mesh="data=4", donate=0)
    spmd = b.spmd(("x", 0, "data"), ("w", 0, "data"))
    assert spmd.counts() == {"all_gather": 1, "reduce_scatter": 1}


def test_a_resharded_value_that_is_used_twice_moves_once(bench):
    b = bench(lambda x, w: (x @ w, x @ jnp.tanh(w) @ w.T), "f32[8,16]", "f32[16,16]", mesh="data=4")
    spmd = b.spmd(("x", 0, "data"), ("w", 0, "data", 0))
    assert len([c for c in spmd.collectives if c.value == "w"]) == 1


def by_hand(b, values, ops):
    """A tiling of these layouts: of results of operations by kind, and of their factors."""
    tiling = b.untiled
    layouts, factors = list(tiling.values), list(tiling.ops)
    for op in b.graph.ops:
        factors[op.index] = ops.get(op.op.short, factors[op.index])
        if op.op.short in values:
            layouts[op.results[0][0]] = values[op.op.short]
    return Tiling(tuple(factors), tuple(layouts), tiling.pinned)


ROWS = ((0,), ())


def gathered_and_cut(x):
    return jnp.tanh(jnp.sin(x))


def added_up_and_cut(a, b):
    return jnp.tanh(a @ b)


@pytest.mark.parametrize(
    ("fn", "types", "ops", "expected"),
    [
        # The sine is to be kept whole, but is made in columns and only needed in rows.
        (
            gathered_and_cut,
            ["f32[8,8]"],
            {"sine": ((), (0,)), "tanh": ROWS},
            ["slice(argument) f32", "all_to_all(sine) f32", "all_gather(tanh) f32"],
        ),
        # The product is to be kept whole, but only needed in rows.
        (
            added_up_and_cut,
            matrices(1),
            {"dot_general": ((), (), (0,)), "tanh": ROWS},
            [
                "slice(argument) f32",
                "slice(argument) f32",
                "reduce_scatter(dot_general) f32",
                "all_gather(tanh) f32",
            ],
        ),
    ],
)
def test_what_nothing_needs_as_it_is_to_be_kept_goes_straight_to_its_use(
    bench, fn, types, ops, expected
):
    b = bench(fn, *types, mesh="x=4")
    assert reshards(unfold(b.lowerer.lower(by_hand(b, {}, ops)))) == expected


def test_what_is_needed_as_it_is_kept_is_kept_so(bench):
    b = bench(lambda a, b: (jnp.tanh(y := a @ b), y), *matrices(1), mesh="x=4")
    tiling = by_hand(b, {}, {"dot_general": ((), (), (0,)), "tanh": ROWS})
    kinds = [each.step.kind for each in unfold(b.lowerer.lower(tiling)).reshards()]
    assert kinds == ["slice", "slice", "all_reduce", "slice", "all_gather"]


def with_unread_index(x):
    index = lax.broadcasted_iota(jnp.int32, (8, 8), 0)
    return lax.sort((jnp.sin(x), index + 1), dimension=1, num_keys=1)[0]


def test_what_nothing_reads_is_not_moved(bench):
    """It is to be kept whole, as all that is not said, but made in rows."""
    b = bench(with_unread_index, "f32[8,8]", mesh="x=4")
    spmd = unfold(b.lowerer.lower(by_hand(b, {}, {"sort": ROWS, "sine": ROWS, "add": ROWS})))
    moved = [name for name in reshards(spmd) if "sort" in name]
    assert moved == ["all_gather(sort) f32"]


def masked(x):
    rows, columns = jnp.arange(8)[:, None], jnp.arange(8)[None, :]
    return jnp.where(rows >= columns, x, -1.0)


def weighted(x):
    y = x * jnp.arange(8.0)
    return jnp.sin(y) + 2.0


@pytest.mark.parametrize("fn", [masked, weighted])
@pytest.mark.parametrize("dim", [0, 1])
def test_values_made_from_nothing_are_made_where_they_are_used(bench, fn, dim):
    b = bench(fn, "f32[8,8]", mesh="x=4")
    spmd = b.spmd(("x", dim, "x"))
    assert spmd.argument_layouts[0][dim] == (0,)
    assert reshards(spmd) == []


def masked_by_one_iota(x):
    rows = jnp.arange(8)
    return jnp.where(rows[:, None] >= rows[None, :], x, -1.0)


@pytest.mark.parametrize("dim", [0, 1])
def test_values_made_from_nothing_cost_no_collective_where_uses_differ(bench, dim):
    b = bench(masked_by_one_iota, "f32[8,8]", mesh="x=4")
    spmd = unfold(b.lowerer.lower(b.propagation("x", dim, "x", place=dim).tiling))
    assert spmd.argument_layouts[0][dim] == (0,)
    assert spmd.counts() == {}


def test_an_untiled_program_moves_nothing(gpt_bench):
    b = gpt_bench(1, "data=4,model=2")
    assert reshards(b.spmd()) == []


def test_operations_without_a_rule_get_their_operands_whole(bench):
    b = bench(lambda x: lax.rng_bit_generator(x, (8,))[1], "u32[4]", mesh="x=4")
    assert reshards(b.spmd(("x", 0, "x"))) == ["all_gather(argument) ui32"]


# ------------------------------------------------------------------------- a GPT train step

LAYER = "state['params']['layers'][0]"
BATCH = ("batch['tokens']", 0, "data")
EMBED = ("state['params']['ln_f']", 0, "data")
HEADS = (f"{LAYER}['wq']", 1, "model")
FFN = (f"{LAYER}['w_in']", 1, "model")
SEQUENCE = ("batch['tokens']", 1, "model", 0)

TABLE = [
    # schedule, actions, counts by L layers and P parameter tensors
    ("batch", [BATCH], lambda L, P: {"all_reduce": P + 1}),
    ("megatron", [HEADS, FFN], lambda L, P: {"all_reduce": 4 * L}),
    ("batch and megatron", [BATCH, HEADS, FFN], lambda L, P: {"all_reduce": P + 1 + 4 * L}),
    (
        "fsdp",
        [BATCH, EMBED],
        lambda L, P: {"all_gather": P, "reduce_scatter": P, "all_reduce": 1},
    ),
]


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize(("actions", "counts"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE])
def test_collectives_of_the_design_table(gpt_bench, layers, actions, counts):
    b = gpt_bench(layers, "data=4,model=2")
    assert b.spmd(*actions).counts() == counts(layers, 8 * layers + 2)


def test_collectives_of_the_design_table_for_24_layers(gpt_bench):
    b = gpt_bench(24, "data=4,model=2")  # slow to trace: one test, so that one worker does it
    found = {name: b.spmd(*actions).counts() for name, actions, _ in TABLE}
    assert found == {name: counts(24, 8 * 24 + 2) for name, _, counts in TABLE}


@pytest.mark.parametrize("layers", [1, 4])
def test_megatron_with_sequence_turns_every_sum_into_a_scatter_and_a_gather(gpt_bench, layers):
    b = gpt_bench(layers, "data=4,model=2")
    counts = b.spmd(HEADS, FFN, SEQUENCE).counts()
    assert counts["all_gather"] == 4 * layers
    assert counts["reduce_scatter"] == 4 * layers
    # What is left are the loss, the norms' gradients and the embedding's.
    assert counts["all_reduce"] == 2 * layers + 3


@pytest.mark.parametrize("layers", [1, 4])
def test_gathered_again_every_weight_moves_twice(gpt_bench, layers):
    b = gpt_bench(layers, "data=4,model=2")
    spmd = b.spmd(BATCH, EMBED, regather=True)
    # The tied embedding has three uses: lookup, logits, and the gradient of the logits.
    assert spmd.counts() == {
        "all_gather": 2 * (8 * layers + 2) + 1,
        "reduce_scatter": 8 * layers + 2,
        "all_reduce": 1,
    }
    again = [item for item in spmd.instructions if getattr(item, "again", False)]
    assert len(again) == 8 * layers + 2 + 1


def test_every_weight_is_gathered_in_the_compute_type(gpt_bench):
    b = gpt_bench(1, "data=4,model=2")
    gathers = [c for c in b.spmd(BATCH, EMBED).collectives if c.kind == "all_gather"]
    matrices = [c for c in gathers if c.value.startswith("convert")]
    assert len(matrices) == 6 + 1 and {c.dtype for c in matrices} == {"bf16"}


@pytest.mark.parametrize("actions", [r[1] for r in TABLE], ids=[r[0] for r in TABLE])
def test_folded_and_unfolded_programs_are_lowered_alike(gpt_bench, actions):
    folded = gpt_bench(1, "data=4,model=2")
    spmd = folded.spmd(*actions)
    graph = discrete(folded.analysis)
    propagator = Propagator(graph, folded.mesh, folded.conflicts)
    tiling = untiled(graph)
    for name, dim, axis in actions:
        color, number = folded.color(name, dim), folded.mesh.axis(axis)
        tiling = propagator.tile_color(tiling, color, number, {}).tiling
    other = unfold(Lowerer(graph, folded.mesh).lower(tiling))
    assert reshards(other) == reshards(spmd)
    assert str(other) == str(spmd)


# --------------------------------------------------------------------- lowering step by step


def content(lowering):
    """Everything a lowering says, comparable between lowerers."""
    forms = [(f.needs, f.makes, f.sums, f.axes) for f in lowering.forms]
    plans = [(p.layout, p.unreduced, p.steps, p.needs, p.reshards) for p in lowering.plans]
    return forms, plans, lowering.unreduced, lowering.outstanding


def attention(x, wq, wk, wv, wo):
    q, k, v = x @ wq, x @ wk, x @ wv
    scores = q @ k.T
    mask = jnp.arange(8)[:, None] >= jnp.arange(8)[None, :]
    weights = jnp.where(mask, jnp.exp(scores), 0.0)
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    return x + (mixed @ wo).astype(jnp.bfloat16).astype(jnp.float32)


ATTENTION = ["f32[8,16]", *["f32[16,8]"] * 3, "f32[8,16]"]

PROGRAMS = {
    "attention": lambda bench, gpt_bench: bench(attention, *ATTENTION, mesh="a=2,b=2,c=2"),
    "sums": lambda bench, gpt_bench: bench(
        sum_scaled, *matrices(2), "f32[8,8]", mesh="a=2,b=2,c=2"
    ),
    "gpt": lambda bench, gpt_bench: gpt_bench(1, "a=2,b=2,c=2"),
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", PROGRAMS)
def test_lowering_step_by_step_is_lowering_at_once(bench, gpt_bench, name, seed):
    b = PROGRAMS[name](bench, gpt_bench)
    rng = random.Random(seed)
    step_by_step = Lowerer(b.graph, b.mesh)
    tiling, lowering, effective = b.untiled, step_by_step.lower(b.untiled), 0
    for _ in range(12):
        color, axis = rng.randrange(b.analysis.groups.colors), rng.randrange(3)
        resolution = {n: rng.choice(roles) for n, roles in enumerate(b.conflicts)}
        propagation = b.propagator.tile_color(tiling, color, axis, resolution)
        if rng.random() < 0.3:  # as refinement does: only some of what the action takes
            some = [node for node in sorted(propagation.taken) if rng.random() < 0.7]
            propagation = b.propagator.restrict(tiling, some, axis)
        effective += propagation.tiling != tiling
        after = step_by_step.lower(propagation.tiling, lowering)
        assert content(after) == content(Lowerer(b.graph, b.mesh).lower(propagation.tiling))
        tiling, lowering = propagation.tiling, after
    assert effective >= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_base_may_be_any_other_tiling(bench, gpt_bench, name):
    """A search goes back: the tiling may have fewer axes than the one it starts from."""
    b = PROGRAMS[name](bench, gpt_bench)
    propagation = b.propagator.tile_color(b.untiled, 0, 0, b.resolution(0))
    assert propagation.taken
    lowerer = Lowerer(b.graph, b.mesh)
    plain, tiled = lowerer.lower(b.untiled), lowerer.lower(propagation.tiling)
    back = lowerer.lower(b.untiled, tiled)
    assert content(back) == content(plain) != content(tiled)


def test_what_every_iteration_of_a_loop_needs_is_gathered_once_before_it(bench):
    def fn(x, w, v):
        return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w) @ v, x)

    b = bench(fn, "f32[16,8]", "f32[8,12]", "f32[12,8]", mesh="x=4")
    spmd = b.spmd(("x", 0, "x"), ("w", 1, "x"))
    (loop,) = (item for item in spmd.instructions if isinstance(item, While))
    before = spmd.instructions[: spmd.instructions.index(loop)]
    assert [item.step.kind for item in before if isinstance(item, Reshard)] == ["all_gather"] * 2
    assert not [item for item in loop.body.instructions if isinstance(item, Reshard)]
