"""What a search is held to: its memory, the colors that it may tile, what it must leave alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import msgspec
import pytest
from jax.ad_checkpoint import checkpoint_name

import partita as pt
from checks import array
from partita import models
from partita.tiling import assignment

BATCH = pt.ManualPartition({"batch*": 0}, axis="data")


def loss(params, batch):
    hidden = checkpoint_name(jnp.tanh(batch["x"] @ params["a"]), "hidden")
    return jnp.mean((hidden @ params["b"] - batch["y"]) ** 2)


def step(params, batch):
    gradients = jax.grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


ARGS = (
    {"a": array(1024, 4096), "b": array(4096, 512)},
    {"x": array(8192, 1024), "y": array(8192, 512)},
)


def plan(*tactics, **more):
    return pt.plan(
        step,
        *ARGS,
        mesh="data=2,model=2",
        hardware="tpu_v5e",
        tactics=tactics,
        donate_argnums=0,
        **more,
    )


def layouts(p):
    """Of every value, by number."""
    return dict(enumerate(p.assignment.values))


def every_value(p, *names):
    """The values that have one of these names, and those that share their buffers."""
    program = p.program
    named = dict(
        [
            *zip(program.argument_names, program.arguments, strict=True),
            *zip(program.result_names, program.results, strict=True),
            *program.tagged,
        ]
    )
    aliases = {program.arguments[a]: program.results[r] for a, r in program.aliases.items()}
    found = {named[name] for name in names}
    return found | {aliases[v] for v in found if v in aliases}


FROZEN = [
    ["params['a']"],
    ["params['b']", "batch['x']"],
    ["hidden"],
    ["batch['x']", "batch['y']"],
    ["params['a']", "params['b']", "hidden"],
]


@pytest.mark.parametrize("before", [(), (BATCH,)], ids=["alone", "behind data parallelism"])
@pytest.mark.parametrize("names", FROZEN, ids=" ".join)
@pytest.mark.parametrize("memory", [None, "40MiB"])
def test_nothing_pinned_changes_its_layout(before, names, memory):
    said = {"budget": 300, "memory": memory, "layouts_only": True}
    free = plan(*before, pt.AutomaticPartition(**said))
    held = plan(*before, pt.AutomaticPartition(**said, pinned=names))
    start = layouts(plan(*before))
    for value in every_value(held, *names):
        assert layouts(held)[value] == start[value]
    # The lowering, too, has them so where a step begins.
    for value, layout in zip(held.program.arguments, held.spmd.argument_layouts, strict=True):
        if value in every_value(held, *names):
            assert layout == start[value]
    assert free.assignment != plan(*before).assignment


def states(problem):
    """All states that moves lead to, in any number and order, and with every part left out."""
    found, queue = {problem.start.key: problem.start}, [problem.start]
    while queue:
        state = queue.pop()
        for move in problem.moves:
            propagation = problem.propagator.tile_color(
                state.tiling, move.color, move.axis, dict(move.roles)
            )
            parts = range(len(problem.parts(propagation, move)))
            changed = [move, msgspec.structs.replace(move, sums=False)]
            changed += [msgspec.structs.replace(move, without=(n,)) for n in parts]
            for each in changed:
                after = problem.step(state, each)
                if after is not None and after.key not in found:
                    found[after.key] = after
                    queue.append(after)
    return found.values()


@pytest.mark.parametrize("before", [(), (BATCH,)], ids=["alone", "behind data parallelism"])
def test_in_no_state_that_a_search_can_reach_is_anything_pinned_changed(before):
    p = plan(*before)
    names = ["params['a']", "hidden"]
    held = every_value(p, *names)
    search = pt.AutomaticPartition(axes=["model"], pinned=names)
    count = 0
    for state in states(search._problem(p.done.stage)):
        found = assignment(search._problem(p.done.stage).graph, state.tiling)
        assert all(found.values[value] == p.assignment.values[value] for value in held)
        count += 1
    assert count > 10


def test_what_is_pinned_for_one_search_is_not_for_the_next():
    p = plan(pt.AutomaticPartition(budget=300, pinned=["*"]))
    assert p.in_shardings == plan().in_shardings
    assert not p.assignment.pinned
    assert p.then(BATCH).in_shardings[1] == {"x": jax.P("data"), "y": jax.P("data")}


@pytest.mark.parametrize(
    ("allow", "dims"),
    [
        (["batch['x']"], [("batch['x']", 0), ("batch['x']", 1)]),
        ({"batch*": 0}, [("batch['x']", 0)]),
        ({"params['a']": 1}, [("params['a']", 1)]),
        ({"params['a']": [0, -1]}, [("params['a']", 0), ("params['a']", 1)]),
        ({"hidden": 1}, [("params['a']", 1)]),
        ("hidden", [("batch['x']", 0), ("params['a']", 1)]),
    ],
)
@pytest.mark.parametrize("memory", [None, "40MiB"])
def test_nothing_is_split_but_in_a_color_that_is_allowed(allow, dims, memory):
    p = plan(pt.AutomaticPartition(budget=300, allow=allow, memory=memory))
    graph = p.done.stage.context.single.graph
    named = dict(zip(p.program.argument_names, p.program.arguments, strict=True))
    allowed = {graph.values[named[name]].colors[dim] for name, dim in dims}
    split = {
        graph.values[value].colors[dim]
        for value, layout in layouts(p).items()
        for dim, axes in enumerate(layout)
        if axes
    }
    assert split
    assert split <= allowed
    # Operations, too.
    assert {
        graph.ops[number].colors[factor]
        for number, layout in enumerate(p.assignment.ops)
        for factor, axes in enumerate(layout)
        if axes
    } <= allowed


def test_what_is_pinned_stays_so_also_if_it_is_allowed():
    search = pt.AutomaticPartition(budget=300, allow={"params['a']": 1}, pinned=["params['a']"])
    p = plan(search)
    assert p.in_shardings[0]["a"] == jax.P()


@pytest.mark.parametrize("option", ["allow", "pinned"])
def test_a_pattern_that_matches_nothing_is_an_error(option):
    with pytest.raises(pt.UnknownNameError, match="'batches' matches no argument"):
        plan(pt.AutomaticPartition(**{option: ["batches"]}))


def test_a_dimension_that_is_not_there_is_an_error():
    with pytest.raises(pt.TacticError, match="there is no dimension 2"):
        plan(pt.AutomaticPartition(allow={"params['a']": 2}))


def test_a_search_keeps_to_its_memory_and_so_does_the_plan():
    model = models.build("gpt-tiny")

    def searched(memory):
        search = pt.AutomaticPartition(budget=150, memory=memory)
        return pt.plan(model.fn, *model.args, mesh="data=8", hardware="tpu_v5e", tactics=search)

    rich, p = searched(None), searched("1.5MiB")
    assert rich.estimate.peak_memory > 3 * 2**20
    assert p.estimate.peak_memory <= p.estimate.capacity == 3 * 2**19
    assert p.history[0].before.capacity == p.hardware.memory.value
    # Later tactics start from there.
    assert p.then(BATCH).estimate.capacity == 3 * 2**19


def test_a_search_that_cannot_keep_to_its_memory_says_so():
    p = plan(pt.AutomaticPartition(budget=300, memory="1MiB"))
    assert p.history[0].refused[0].what == "fitting into memory"
    assert not p.estimate.fits


def test_a_search_has_no_more_memory_than_the_plan():
    with pytest.raises(pt.TacticError, match=r"may use 1\.0 GiB .*give pt\.plan the larger memory"):
        plan(pt.AutomaticPartition(memory="2GiB"), memory="1GiB")


def test_memory_that_cannot_be_read():
    with pytest.raises(pt.HardwareError, match='cannot read memory="much"'):
        plan(pt.AutomaticPartition(memory="much"))


def test_a_search_says_which_sizes_an_axis_does_not_divide():
    made = pt.plan(
        lambda w, x: jnp.tanh(x @ w),
        jax.ShapeDtypeStruct((7, 9), jnp.float32),
        jax.ShapeDtypeStruct((30, 7), jnp.float32),
        mesh="data=8",
        hardware="tpu_v5e",
        tactics=pt.AutomaticPartition(budget=20),
    )
    (entry,) = made.history
    assert entry.decisions == ("nothing: no move helps",)
    assert [str(refusal) for refusal in entry.refused[:1]] == [
        "data=8: it does not divide any size: 9 (w dim 1), 30 (x dim 0), 7 (w dim 0) "
        "(a size padded to a multiple, or an axis of another size, could be used)"
    ]


# ------------------------------------------------------------------------- what was decided before


@pytest.mark.parametrize("seed", [0, 1])
def test_what_has_an_axis_before_a_search_keeps_it(seed):
    """Also where single classes are laid out otherwise than their colors, at the end."""
    rows = pt.ManualPartition({"params['a']": 0}, axis="model")
    made = plan(BATCH, rows, pt.AutomaticPartition(budget=2500, seed=seed))
    before, after = made.history[1].assignment, made.history[2].assignment
    pairs = [*zip(before.ops, after.ops, strict=True)]
    pairs += zip(before.values, after.values, strict=True)
    for old, new in pairs:
        for mine, others in zip(old, new, strict=True):
            assert others[: len(mine)] == mine


def smooth(x, w):
    """Convolutions along one long dimension."""
    return jnp.tanh(jax.lax.conv_general_dilated(x, w, (1,), "SAME"))


def smoothed(*tactics):
    args = array(1, 64, 2**20), array(64, 64, 9)
    return pt.plan(smooth, *args, mesh="x=4", hardware="h100", tactics=tactics)


def kinds(plan):
    return {c.kind for c in plan.collectives}


@pytest.mark.parametrize("search", ["iterated", "mcts", "refine", "greedy", "beam", "exhaustive"])
def test_kinds_of_collectives_are_avoided(search):
    assert kinds(smoothed(pt.AutomaticPartition(budget=50, search=search))) == {
        "collective_permute"
    }
    avoiding = pt.AutomaticPartition(budget=50, search=search, avoid="collective_permute")
    assert "collective_permute" not in kinds(smoothed(avoiding))


def test_what_cannot_be_avoided_is_refused():
    split = pt.ManualPartition({"x": 2}, axis="x")
    plan = smoothed(split, pt.AutomaticPartition(budget=5, avoid="collective_permute"))
    assert "what was decided before needs one" in str(plan.history[-1].refused[0])
