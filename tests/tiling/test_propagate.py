"""Tiling: how an axis propagates through a program, where it stops; earlier actions win."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from conftest import Bench
from conftest import _program as program_of
from fuzzing import programs
from partita.analysis import fold
from partita.frontend.trace import trace
from partita.tiling import Propagator, assignment, refold


def matmul(x, w):
    return x @ w


def chain(x, w, v):
    return (x @ w) @ v


CHAIN = ["f32[8,16]", "f32[16,4]", "f32[4,12]"]


def attention(x, wq, wk, wv):
    scores = (x @ wq) @ (x @ wk).T
    return scores @ (x @ wv)


ATTENTION = ["f32[8,16]", "f32[16,4]", "f32[16,4]", "f32[16,12]"]


def pin(tiling, value, axis):
    return tiling.pinning(tiling.pinned | {(value, axis)})


def reasons(propagation):
    return [(stop.reason, stop.divides) for stop in propagation.stops]


# -------------------------------------------------------------------------------- propagation


@pytest.mark.parametrize(
    ("fn", "types", "seed", "expected"),
    [
        (chain, CHAIN, ("x", 0), {"x": ("x",), "result": ("x",)}),
        (chain, CHAIN, ("result", 0), {"x": ("x",), "result": ("x",)}),
        (chain, CHAIN, ("x", 1), {"x": (None, "x"), "w": ("x",)}),
        (chain, CHAIN, ("w", 1), {"w": (None, "x"), "v": ("x",)}),
        (chain, CHAIN, ("result", 1), {"v": (None, "x"), "result": (None, "x")}),
        (lambda a: a.T, ["f32[8,16]"], ("a", 1), {"a": (None, "x"), "result": ("x",)}),
        (
            lambda a, b: jnp.tanh(a) + b,
            ["f32[8,16]", "f32[16]"],
            ("b", 0),
            {"a": (None, "x"), "b": ("x",), "result": (None, "x")},
        ),
        (lambda a: a.sum(0), ["f32[8,16]"], ("a", 0), {"a": ("x",)}),
        (
            lambda a: a.reshape(32, 8),
            ["f32[4,8,8]"],
            ("a", 0),
            {"a": ("x",), "result": ("x",)},
        ),
    ],
    ids=[
        *("batch", "from the result", "contracted", "inner", "output"),
        *("transpose", "broadcast", "reduce", "merge"),
    ],
)
def test_an_axis_propagates_along_identity_and_flow(bench, fn, types, seed, expected):
    b = bench(fn, *types)
    assert b.layouts(b.propagation(*seed, "x").tiling) == expected


def test_operations_on_the_way_take_the_axis_on_their_factor(bench):
    b = bench(chain, *CHAIN)
    assert b.propagation("x", 1, "x").tiling.ops == (((), (), (0,)), ((), (), ()))
    assert b.propagation("x", 0, "x").tiling.ops == (((0,), (), ()), ((0,), (), ()))


def test_donated_buffers_propagate_to_their_results(bench):
    b = bench(lambda old, new: new + 1.0, "f32[8]", "f32[8]", donate=0)
    assert b.layouts(b.propagation("old", 0, "x").tiling).keys() == {"old", "new", "result"}


def test_nothing_propagates_from_no_seed(bench):
    b = bench(chain, *CHAIN)
    propagation = b.propagator.tile_nodes(b.untiled, [], 0, {})
    assert propagation.tiling == b.untiled and not propagation.taken


# --------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize(
    ("fn", "types", "seed", "expected"),
    [
        (lambda a: a[2:5], ["f32[8,16]"], ("a", 0), {"a": ("x",)}),
        (lambda a: a[2:6], ["f32[8,16]"], ("a", 1), {"a": (None, "x"), "result": (None, "x")}),
        (lambda a: jnp.sort(a), ["f32[8,16]"], ("a", 1), {"a": (None, "x")}),
        (
            lambda a: a.reshape(4, 4, 8),
            ["f32[16,8]"],
            ("result", 1),
            {"result": (None, "x")},
        ),
    ],
    ids=["slice", "beside a slice", "sort", "inner factor"],
)
def test_an_axis_does_not_pass_blocked_factors(bench, fn, types, seed, expected):
    b = bench(fn, *types)
    assert b.layouts(b.propagation(*seed, "x").tiling) == expected


@pytest.mark.parametrize(
    ("mesh", "size", "tiled"),
    [("x=2", 6, True), ("x=3", 6, True), ("x=4", 6, False), ("x=8", 6, False), ("x=1", 6, True)],
)
def test_only_sizes_that_divide_are_tiled(bench, mesh, size, tiled):
    b = bench(lambda a: a * 2.0, f"f32[{size}]", mesh=mesh)
    propagation = b.propagation("a", 0, "x")
    assert bool(propagation.taken) is tiled
    assert reasons(propagation) == (
        [] if tiled else [(f"{size} is not divisible by {b.mesh}", False)]
    )


def test_two_axes_on_one_dimension_must_divide_together(bench):
    b = bench(lambda a: a * 2.0, "f32[12]", mesh="x=4,y=3,z=2")
    propagation = b.propagation("a", 0, "x")
    both = b.propagation("a", 0, "y", propagation.tiling)
    assert b.layouts(both.tiling) == {"a": (("x", "y"),), "result": (("x", "y"),)}
    third = b.propagation("a", 0, "z", propagation.tiling)
    assert third.tiling == propagation.tiling
    assert reasons(third) == [("12 is not divisible by x=4 x z=2", False)]


def test_color_actions_check_both_axes_of_a_dimension_too(bench):
    b = bench(lambda a: a * 2.0, "f32[12]", mesh="x=4,y=3,z=2")
    both = b.tile(("a", 0, "x"), ("a", 0, "z"), ("a", 0, "y"))
    assert b.layouts(both) == {"a": (("x", "y"),), "result": (("x", "y"),)}


def test_a_composite_dimension_is_tiled_by_its_leading_factor_only(bench):
    def split(a):
        return a.reshape(4, 3, 5)

    whole = bench(split, "f32[12,5]", mesh="x=2")
    assert whole.layouts(whole.propagation("a", 0, "x").tiling) == {"a": ("x",), "result": ("x",)}

    b = bench(split, "f32[12,5]", mesh="x=3")
    propagation = b.propagation("a", 0, "x")
    assert b.layouts(propagation.tiling) == {"a": ("x",)}
    assert reasons(propagation) == [
        ("4 is not divisible by x=3 (the dimension of 12 is made of 4 x 3, major first)", False)
    ]


# ------------------------------------------------------------------------------------- pins


def test_a_pinned_value_stays_whole_along_that_axis_and_stops_the_propagate(bench):
    b = bench(lambda a: jnp.tanh(a) * 2.0, "f32[8]", mesh="x=2,y=2")
    pinned = pin(b.untiled, b.value("result"), b.mesh.axis("x"))
    propagation = b.propagation("a", 0, "x", pinned)
    assert b.layouts(propagation.tiling) == {"a": ("x",)}
    assert reasons(propagation) == [("it is pinned along x", True)]
    other = b.propagation("a", 0, "y", pinned)
    assert b.layouts(other.tiling) == {"a": ("y",), "result": ("y",)}


def test_color_actions_leave_pinned_values_whole(bench):
    b = bench(chain, *CHAIN)
    pinned = pin(b.untiled, b.value("x"), 0)
    tiling = b.propagator.tile_color(pinned, b.color("x", 0), 0, {}).tiling
    assert b.layouts(tiling) == {"result": ("x",)}
    assert tiling.pinned == pinned.pinned


# ------------------------------------------------------------------------------ composition


def test_earlier_wins_where_both_want_the_axis(bench):
    b = bench(matmul, "f32[8,16]", "f32[16,4]")
    first = b.propagation("x", 0, "x").tiling
    second = b.propagation("w", 0, "x", first)
    # x and the product already use the axis; only the weight takes it.
    assert b.layouts(second.tiling) == {"x": ("x",), "w": ("x",), "result": ("x",)}
    assert second.tiling.ops == first.ops
    assert reasons(second) == [("x is already used there", True)]


def test_order_matters(bench):
    b = bench(matmul, "f32[8,16]", "f32[16,4]")
    rows, inner = ("x", 0, "x"), ("x", 1, "x")
    assert b.layouts(b.tile(rows, inner)) == {"x": ("x",), "w": ("x",), "result": ("x",)}
    # Rows come second: x and the product's operation use the axis, its result does not.
    assert b.layouts(b.tile(inner, rows)) == {"x": (None, "x"), "w": ("x",)}
    assert b.tile(rows, inner) != b.tile(inner, rows)


def test_different_axes_compose_in_any_order(bench):
    b = bench(matmul, "f32[8,16]", "f32[16,4]", mesh="data=4,model=2")
    rows, columns = ("x", 0, "data"), ("w", 1, "model")
    assert b.tile(rows, columns) == b.tile(columns, rows)
    assert b.layouts(b.tile(rows, columns)) == {
        "x": ("data",),
        "w": (None, "model"),
        "result": ("data", "model"),
    }


def test_an_action_twice_is_the_action_once(bench):
    b = bench(chain, *CHAIN)
    assert b.tile(("x", 0, "x"), ("x", 0, "x")) == b.tile(("x", 0, "x"))


def test_a_tiling_is_never_changed_in_place(bench):
    b = bench(chain, *CHAIN)
    before = (b.untiled.ops, b.untiled.values)
    b.propagation("x", 0, "x")
    b.tile(("x", 0, "x"))
    assert (b.untiled.ops, b.untiled.values) == before


# --------------------------------------------------------------- color actions and seeded ones


@pytest.mark.parametrize(
    ("fn", "types", "where"),
    [
        (chain, CHAIN, ("x", 0)),
        (chain, CHAIN, ("x", 1)),
        (chain, CHAIN, ("w", 1)),
        (chain, CHAIN, ("v", 1)),
        (attention, ATTENTION, ("x", 1)),
        (attention, ATTENTION, ("wq", 1)),
        (lambda a, b: jnp.tanh(a) / b.sum(0), ["f32[8,4]", "f32[2,4]"], ("b", 1)),
    ],
)
def test_tiling_a_color_is_propagating_from_all_arguments_with_that_color(bench, fn, types, where):
    b = bench(fn, *types)
    color = b.color(*where)
    seeds = [
        ("value", v, dim)
        for v in b.program.arguments
        for dim, each in enumerate(b.graph.values[v].colors)
        if each == color
    ]
    by_color = b.propagator.tile_color(b.untiled, color, 0, {})
    by_seeds = b.propagator.tile_nodes(b.untiled, seeds, 0, {})
    assert by_color.taken and by_color.taken == by_seeds.taken
    assert by_color.tiling == by_seeds.tiling


@pytest.mark.parametrize(
    "where",
    [
        ("batch['tokens']", 0),
        ("state['params']['ln_f']", 0),
        ("state['params']['embed']", 0),
        ("state['params']['layers'][0]['wq']", 1),
        ("state['params']['layers'][0]['wv']", 2),
        ("state['params']['layers'][0]['w_in']", 1),
    ],
    ids=["batch", "embed", "vocabulary", "heads", "v head-dim", "ffn"],
)
def test_on_a_gpt_too(gpt_bench, where):
    b = gpt_bench(1, "x=2")
    color = b.color(*where)
    seeds = [
        ("value", v.index, dim)
        for v in b.graph.values
        if v.producer is None
        for dim, each in enumerate(v.colors)
        if each == color
    ]
    by_color = b.propagator.tile_color(b.untiled, color, 0, {})
    by_seeds = b.propagator.tile_nodes(b.untiled, seeds, 0, {})
    assert by_color.tiling == by_seeds.tiling


def random_actions(b, seed):
    """Color groups tiled in any order, with pinned values: `(tiling, color, axis, roles)` each."""
    rng = np.random.default_rng(seed)
    colors = sorted({c for v in b.graph.values for c in v.colors if c >= 0})
    tiling = b.untiled
    for color in rng.permutation(colors)[:12]:
        axis = int(rng.integers(len(b.mesh.names)))
        if rng.integers(2):
            tiling = pin(tiling, int(rng.integers(len(b.graph.values))), axis)
        roles = {n: int(rng.choice(r)) for n, r in enumerate(b.conflicts) if rng.integers(3)}
        yield tiling, color, axis, roles
        tiling = b.propagator.tile_color(tiling, color, axis, roles).tiling


def is_the_same_from_seeds(b, tiling, color, axis, roles):
    """Tiling a color, and propagating from all its operations and arguments."""
    owners = [("op", op.index, op.colors) for op in b.graph.ops]
    owners += [("value", v.index, v.colors) for v in b.graph.values if v.producer is None]
    seeds = [
        (kind, index, place)
        for kind, index, places in owners
        for place, each in enumerate(places)
        if each == color
    ]
    by_color = b.propagator.tile_color(tiling, color, axis, roles)
    by_seeds = b.propagator.tile_nodes(tiling, seeds, axis, roles)
    return by_color.taken == by_seeds.taken and by_color.tiling == by_seeds.tiling


@pytest.mark.parametrize("number", range(12))
def test_both_ways_to_start_agree_whatever_came_before(number):
    random = programs.program(number)
    traced = trace(random.fn, (random.arguments(),), {}).program
    b = Bench(traced, "x=2,y=2", folded=bool(number % 2))
    assert all(is_the_same_from_seeds(b, *action) for action in random_actions(b, number))


def some_nodes(b, rng):
    """Some factors of operations and dimensions of values, named twice now and then."""
    nodes = [("op", op.index, f) for op in b.graph.ops for f in range(len(op.colors))]
    nodes += [("value", v.index, dim) for v in b.graph.values for dim in range(len(v.colors))]
    return [nodes[n] for n in rng.integers(len(nodes), size=rng.integers(8))]


def is_remembered(b, tiling, seeds, axis, roles):
    """What is taken from nodes where it is remembered what is in the way, and where it is not."""
    quick = b.propagator.tile_seeds(tiling, seeds, axis, roles)
    slow = b.propagator.tile_nodes(tiling, seeds, axis, roles)
    return (quick.tiling, quick.ops, quick.values) == (slow.tiling, slow.ops, slow.values)


@pytest.mark.parametrize("number", range(12))
def test_what_is_remembered_takes_the_same_as_looking(number):
    rng, random = np.random.default_rng(number), programs.program(number)
    traced = trace(random.fn, (random.arguments(),), {}).program
    b = Bench(traced, "x=2,y=2", folded=bool(number % 2))
    for tiling, _, axis, roles in random_actions(b, number):
        assert is_remembered(b, tiling, some_nodes(b, rng), axis, roles)


SQUARE = ["f32[8,8]"]
REGION = {
    "mesh": jax.sharding.AbstractMesh((2, 2), ("x", "y")),
    "in_specs": (P("x", "y"), P("y")),
    "out_specs": P("x"),
}


@pytest.mark.parametrize(
    "fn, types",
    [
        (lambda x: x + x.T, SQUARE),
        (lambda x: (x + x.T).sum(0), SQUARE),
        (lambda x: jax.lax.scan(lambda c, row: (c + row, c @ row), x[0], x + x.T), SQUARE),
        (lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (3, 1), (1, 1), "SAME"), SQUARE),
        (lambda key: jax.random.normal(key, (8, 4)), ["u32[2]"]),
        (jax.shard_map(jnp.dot, check_vma=False, **REGION), ["f32[8,8]", "f32[8,4]"]),
    ],
    ids=["one role", "one role summed", "loop", "halo", "key", "region"],
)
@pytest.mark.parametrize("seed", range(4))
def test_both_ways_to_start_agree_in_particular_programs(fn, types, seed):
    b, rng = Bench(program_of(fn, *types), "x=2,y=2"), np.random.default_rng(seed)
    for tiling, color, axis, roles in random_actions(b, seed):
        assert is_the_same_from_seeds(b, tiling, color, axis, roles)
        assert is_remembered(b, tiling, some_nodes(b, rng), axis, roles)


@pytest.mark.parametrize(("mesh", "shards"), [("x=4", 1), ("x=2,y=2", 2)])
def test_tiling_a_color_leaves_no_shard_narrower_than_the_halo(bench, mesh, shards):
    """Windows of 7 rows reach 3 rows into their neighbours; a quarter of 8 rows has 2."""

    def pool(x):
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (7, 1), (1, 1), "SAME")

    b = bench(pool, *SQUARE, mesh=mesh)
    tiling, rows = b.untiled, b.color("x", 0)
    for axis in range(len(b.mesh.names)):
        assert is_the_same_from_seeds(b, tiling, rows, axis, {})
        tiling = b.propagator.tile_color(tiling, rows, axis, {}).tiling
    assert b.mesh.size(tiling.values[b.value("x")][0]) == 4
    assert max(b.mesh.size(axes) for layout in tiling.ops for axes in layout) == shards


def test_what_is_next_to_a_dimension_that_yields_takes_the_axis_all_the_same(bench):
    """The sum takes the axis on the rows that it adds up; columns, of the same role, yield."""
    b = bench(lambda x: (x + x.T).sum(0), *SQUARE)
    by_color = b.propagator.tile_color(b.untiled, b.color("x", 0), 0, b.resolution(0))
    assert b.layouts(by_color.tiling)["result"] == ("x",)
    assert b.spmd(("x", 0, "x", 0)).collectives


# -------------------------------------------------------------------------------- conflicts


def test_without_a_resolution_a_conflict_is_left_alone_and_said(bench):
    b = bench(attention, *ATTENTION)
    propagation = b.propagation("x", 0, "x")
    assert propagation.unresolved == {0}
    assert b.layouts(propagation.tiling) == {"x": ("x",)}
    assert not [o for o in propagation.ops if any(r >= 0 for r in b.graph.ops[o].roles)]


@pytest.mark.parametrize("place", [0, 1])
def test_a_resolution_gives_the_axis_to_one_role(bench, place):
    b = bench(attention, *ATTENTION)
    propagation = b.propagation("x", 0, "x", place=place)
    (role,) = b.resolution(place).values()
    assert not propagation.unresolved
    taken = {b.propagator.role(node) for node in propagation.taken}
    assert taken == {-1, role}
    (scores,) = [
        op.index for op in b.graph.ops if [r for r in op.roles if r >= 0] and op.roles[2] < 0
    ]
    tiled = [factor for factor, axes in enumerate(propagation.tiling.ops[scores]) if axes]
    assert tiled == [b.graph.ops[scores].roles.index(role)]


def test_the_two_resolutions_differ(bench):
    b = bench(attention, *ATTENTION)
    assert b.tile(("x", 0, "x", 0)) != b.tile(("x", 0, "x", 1))


def test_tiling_a_color_and_propagating_resolve_alike(bench):
    b = bench(attention, *ATTENTION)
    for place in (0, 1):
        assert b.tile(("x", 0, "x", place)) == b.propagation("x", 0, "x", place=place).tiling


def test_a_role_that_meets_itself_tiles_one_dimension(bench):
    b = bench(lambda x: x + x.T, "f32[8,8]")
    propagation = b.propagation("x", 0, "x", place=0)
    for layout in (*propagation.tiling.ops, *propagation.tiling.values):
        assert sum(bool(axes) for axes in layout) == 1


# ------------------------------------------------------------------------------------ parts


def test_an_action_blocked_by_an_earlier_one_falls_into_parts(bench):
    b = bench(chain, "f32[8,16]", "f32[16,4]", "f32[4,16]")
    whole = b.propagator.tile_color(b.untiled, b.color("w", 1), 0, {})
    assert len(b.propagator.connected(whole.taken)) == 1

    rows = b.tile(("x", 0, "x"))
    after = b.propagator.tile_color(rows, b.color("w", 1), 0, {})
    parts = b.propagator.connected(after.taken)
    assert parts == [frozenset({("value", b.value(n), d)}) for n, d in (("w", 1), ("v", 0))]


def test_restricted_to_all_its_parts_an_action_is_the_same(bench):
    b = bench(chain, *CHAIN)
    propagation = b.propagator.tile_color(b.untiled, b.color("w", 1), 0, {})
    nodes = frozenset().union(*b.propagator.connected(propagation.taken))
    assert b.propagator.restrict(b.untiled, nodes, 0) == propagation


def test_restricting_leaves_out_what_can_no_longer_take_the_axis(bench):
    b = bench(matmul, "f32[8,16]", "f32[16,4]")
    inner = b.propagator.tile_color(b.untiled, b.color("x", 1), 0, {}).taken
    rows = b.tile(("x", 0, "x"))
    assert b.layouts(b.propagator.restrict(rows, inner, 0).tiling) == {
        "x": ("x",),
        "w": ("x",),
        "result": ("x",),
    }


# ---------------------------------------------------------------------------------- folding


def test_unfolding_and_refolding_keep_a_tiling(gpt_bench):
    b = gpt_bench(3, "data=4,model=2")
    tiling = b.tile(
        ("batch['tokens']", 0, "data"),
        ("state['params']['ln_f']", 0, "data"),
        ("state['params']['layers'][0]['w_in']", 1, "model"),
    )
    assigned = assignment(b.graph, tiling)
    graph, again = refold(b.analysis, assigned)
    assert assignment(graph, again) == assigned


def test_pins_survive_refolding(bench):
    b = bench(chain, *CHAIN)
    pinned = pin(b.untiled, 1, 0)
    graph, again = refold(b.analysis, assignment(b.graph, pinned))
    assert assignment(graph, again).pinned == {(1, 0)}


@pytest.mark.parametrize("color", ["heads", "ffn"])
def test_tiling_classes_is_tiling_every_member(gpt_bench, color):
    b = gpt_bench(3, "x=2")
    weight, dim = {"heads": ("wq", 1), "ffn": ("w_in", 1)}[color]
    layers = [b.color(f"state['params']['layers'][{i}]['{weight}']", dim) for i in range(3)]
    assert len(set(layers)) == 1
    graph = fold(b.analysis)
    tiling = Propagator(graph, b.mesh, b.conflicts).tile_color(b.untiled, layers[0], 0, {}).tiling
    assigned = assignment(graph, tiling)
    for i in range(3):
        name = f"state['params']['layers'][{i}]['{weight}']"
        value = b.program.arguments[b.program.argument_names.index(name)]
        assert assigned.values[value][dim] == (0,)
