"""`Plan.explain`: who split a value, what a collective is for, what the alternatives cost."""

from __future__ import annotations

import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import partita as pt
from checks import array, planner
from partita import models
from partita.decisions import Change
from partita.explain.alternatives import Candidate, replay
from partita.planning.replay import Replay


def mlp(w1, w2, x):
    hidden = jax.nn.relu(x @ w1)
    return checkpoint_name(hidden, "hidden") @ w2


def attention(x):
    return jax.nn.softmax(x @ x.T) @ x


def sgd(params, x):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def spectrum(x):
    return jnp.fft.fft(x.T)


BATCH = pt.ManualPartition({"x": 0}, axis="data")
COLUMNS = pt.ManualPartition({"w1": 1}, axis="model")
FSDP = pt.ManualPartition({"params['w1']": 0, "params['w2']": 1}, axis="data")


plan = planner(mesh="data=4,model=2")


def plan_mlp(*tactics, **options):
    return plan(mlp, array(64, 256), array(256, 64), array(512, 64), tactics=tactics, **options)


def plan_sgd(*tactics, memory=None):
    params = {"w1": array(64, 256), "w2": array(256, 64)}
    args = params, array(512, 64)
    return plan(sgd, *args, tactics=tactics, memory=memory, donate_argnums=0)


def plan_attention(resolve, **options):
    tactic = pt.ManualPartition({"x": 0}, axis="seq", resolve=resolve)
    return plan(attention, array(64, 16), tactics=[tactic], mesh="seq=2", **options)


def kinds(chain):
    return [step.split(" at ")[0] for step in chain]


def only(explanation):
    (entry,) = explanation
    return entry


def costs(change, made, plan):
    return (
        change.step_time,
        change.peak_memory,
        change.step_time_change,
        change.peak_memory_change,
    ) == (
        made.estimate.step_time,
        made.estimate.peak_memory,
        made.estimate.step_time - plan.estimate.step_time,
        made.estimate.peak_memory - plan.estimate.peak_memory,
    )


def starting(explanation, text):
    """The alternative whose change starts with a text."""
    (found,) = (a for a in explanation.alternatives if a.change.startswith(text))
    return found


# -------------------------------------------------------------------------------------- values


def test_an_axis_came_from_another_argument_through_the_operations_between():
    w2 = only(plan_mlp(BATCH, COLUMNS).explain("w2"))
    assert (w2.type, w2.sharding, w2.shard) == ("f32[256,64]", ("model", None), "f32[128,64]")
    (decision,) = w2.decisions
    assert (decision.where, decision.axis, decision.position) == ("dim 0", "model", 1)
    assert decision.tactic == "ManualPartition(w1: 1 -> model)"
    assert decision.action == "w1 dim 1"
    assert kinds(decision.chain) == ["dot_general", "maximum", "dot_general"]
    assert all("test_explain.py:" in step for step in decision.chain)


def test_a_seed_has_no_chain():
    (decision,) = only(plan_mlp(BATCH, COLUMNS).explain("w1")).decisions
    assert (decision.action, decision.chain) == ("w1 dim 1", ())


def test_each_axis_of_a_value_has_its_own_tactic():
    hidden = only(plan_mlp(BATCH, COLUMNS).explain("hidden"))
    assert hidden.sharding == ("data", "model")
    assert [(d.axis, d.position, kinds(d.chain)) for d in hidden.decisions] == [
        ("data", 0, ["dot_general", "maximum"]),
        ("model", 1, ["dot_general", "maximum"]),
    ]


def test_a_long_chain_is_cut_in_the_middle_in_print_only():
    def deep(x):
        for _ in range(4):
            x = jnp.sin(jnp.cos(x))
        return x

    made = plan(deep, array(8, 8), tactics=[BATCH])
    (result,) = made.explain("result")
    assert len(result.decisions[0].chain) == 8
    text = str(result)
    assert "... 2 more ..." in text
    assert text.count("cosine") + text.count("sine at") >= 6


def test_the_buffer_of_a_donated_argument_is_a_step_of_the_way():
    (decision,) = only(plan_sgd(FSDP).explain("result['w1']")).decisions
    assert decision.chain[-1] == "the donated buffer of params['w1']"


def test_values_by_number_and_by_source_line():
    made = plan_mlp(BATCH, COLUMNS)
    product = only(made.explain("%3"))
    assert product.sharding == ("data", "model")
    source = made.program.operations[made.program.values[3].producer].source
    by_line = made.explain(source)
    assert product.sharding in [entry.sharding for entry in by_line]
    short = source.rpartition("/")[2]
    assert str(made.explain(short)) == str(by_line)


def test_a_value_that_no_tactic_reached():
    w2 = only(plan_mlp(BATCH).explain("w2"))
    assert (w2.sharding, w2.decisions, w2.left_out) == ((None, None), (), ())
    assert w2.notes == ("no tactic has put an axis there",)


def test_layers_that_are_alike_are_written_once():
    def stack(layers, x):
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    args = ([array(16, 16)] * 3, array(64, 16))
    entry = only(plan(stack, *args, tactics=[BATCH]).explain("layers*"))
    assert (entry.name, entry.count) == ("layers[*]", 3)


def test_a_dimension_that_does_not_divide():
    made = plan(lambda x: x + 1, array(6, 8), tactics=[BATCH])
    (left,) = only(made.explain("x")).left_out
    assert (left.dim, left.axis, left.position) == (0, "data", 0)
    assert left.reason == "6 is not divisible by data=4"


def test_a_dimension_that_is_pinned():
    pin = pt.ManualPartition({"w2": "replicate"}, axis="model")
    (left,) = only(plan_mlp(pin, COLUMNS).explain("w2")).left_out
    assert (left.dim, left.axis, left.position) == (0, "model", 1)
    assert left.reason == "it is pinned along model"


def test_an_axis_that_is_used_on_another_dimension():
    rows = pt.ManualPartition({"w2": 1}, axis="model")
    (left,) = only(plan_mlp(COLUMNS, rows).explain("w2")).left_out
    assert (left.dim, left.axis, left.position) == (1, "model", 1)
    assert left.reason == "model is already used there, on dimension 0"


def test_an_axis_that_an_operation_before_it_did_not_take():
    made = plan_sgd(pt.ManualPartition({"x": 0}, axis="data"), FSDP)
    products = [op for op in made.program.operations if op.short == "dot_general"]
    (left,) = only(made.explain(f"%{products[1].results[0]}")).left_out
    assert (left.dim, left.axis) == (1, "data")
    assert "data is already used there, on dimension 0" in left.reason


def test_a_conflict_that_went_to_the_other_role():
    made = plan_attention(resolve=0)
    scores = made.program.operations[1].results[0]
    entry = only(made.explain(f"%{scores}"))
    assert entry.sharding == ("seq", None)
    (left,) = entry.left_out
    assert left.dim == 1
    assert "meets itself, and seq went to dimension 0 of dot_general" in left.reason


def test_a_conflict_that_is_open():
    made = plan_attention(resolve=None)
    scores = made.program.operations[1].results[0]
    left = only(made.explain(f"%{scores}")).left_out
    assert [x.dim for x in left] == [0, 1]
    assert all("unresolved: x dim 0 meets itself" in x.reason for x in left)


def test_the_color_that_a_search_tiled():
    search = pt.AutomaticPartition(axes=["data"], budget=100)
    made = plan(mlp, array(64, 256), array(256, 64), array(2**16, 64), tactics=search)
    (decision,) = only(made.explain("x")).decisions
    assert decision.color == made.history[0].actions[0].color
    assert decision.chain == ()
    assert f"tiled color {decision.color} as a whole" in str(decision)


def test_shardings_that_the_program_comes_with(tmp_path):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("data"))
    exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x), in_shardings=rows))
    path = tmp_path / "given.mlirbc"
    path.write_bytes(exported(array(8, 8)).mlir_module_serialized)
    made = plan(path, tactics=[], mesh="data=4")
    (decision,) = only(made.explain("result")).decisions
    assert (decision.position, decision.action) == (0, "x dim 0")
    assert decision.tactic == made.history[0].name == "Shardings in the program (1)"


# --------------------------------------------------------------------------------- collectives


def test_a_sum_over_a_split_dimension():
    made = plan_mlp(BATCH, COLUMNS)
    told = only(made.explain(0))
    assert (told.kind, told.axes, told.bytes, told.count) == (
        "all_reduce", ("model",), 128 * 64 * 4, 1,
    )  # fmt: skip
    assert told.seconds == made.estimate.traffic["all_reduce", ("model",)].seconds
    assert not told.hidden
    assert told.value == "result"
    assert told.made_by.startswith("dot_general at ")
    assert told.uses == ("result",)
    (reason,) = told.reasons
    assert "sums over dim 1 of hidden, which is sharded along model" in reason
    (decision,) = told.decisions
    assert (decision.position, decision.action) == (1, "w1 dim 1")


def test_a_gather_for_a_use_whose_axis_is_taken():
    told = [c for c in plan_sgd(BATCH, FSDP).explain("collectives") if c.kind == "all_gather"]
    first = next(c for c in told if c.value == "params['w1']")
    assert first.made_by == "params['w1']"
    assert any(
        "it is kept sharded along data on dim 0, and dot_general" in reason
        and "uses data on dimension 0" in reason
        for reason in first.reasons
    )
    # The weight's axis by FSDP, the use's by the split of the batch.
    assert {d.position for d in first.decisions} == {0, 1}


def test_a_reduce_scatter_for_a_gradient_that_is_kept_split():
    told = plan_sgd(BATCH, FSDP).explain("collectives")
    for entry in (c for c in told if c.kind == "reduce_scatter"):
        assert "sums over dim 0 of" in entry.reasons[0]
        assert "the sum is kept sharded along data" in entry.reasons[1]


def test_a_dimension_that_an_operation_needs_whole():
    made = plan(spectrum, array(64, 16), tactics=[BATCH])
    told = next(c for c in made.explain("collectives") if c.kind == "all_gather")
    assert "fft requires replication of this dimension" in told.reasons[0]


def test_a_halo_that_neighbours_exchange():
    def smooth(x):
        return jax.lax.conv_general_dilated(x, jnp.ones((1, 1, 3)), (1,), "SAME")

    tactic = pt.ManualPartition({"x": 2}, axis="data")
    made = plan(smooth, array(64, 1, 8192), tactics=[tactic])
    told = [c for c in made.explain("collectives") if c.kind == "collective_permute"]
    assert told
    assert all("each device needs 1 more" in c.reasons[0] for c in told)


def test_collectives_that_are_alike_are_explained_once():
    def stack(layers, x):
        for up, down in layers:
            x = x + jnp.tanh(x @ up) @ down
        return x

    layers = [(array(16, 64), array(64, 16))] * 3
    tactic = pt.ManualPartition({f"layers[{n}][0]": 1 for n in range(3)}, axis="model")
    made = plan(stack, layers, array(64, 16), tactics=[tactic])
    told = made.explain("collectives")
    assert sum(len(entry.alike) for entry in told) == len(made.collectives) == 3
    assert str(told).count("because") == len(told)


def test_a_collective_in_a_loop_counts_every_time_around():
    def scanned(ups, downs, x):
        def layer(h, weights):
            up, down = weights
            return h + jnp.tanh(h @ up) @ down, None

        return jax.lax.scan(layer, x, (ups, downs))[0]

    tactic = pt.ManualPartition({"ups": 2}, axis="model")
    args = array(6, 16, 32), array(6, 32, 16), array(64, 16)
    (told,) = plan(scanned, *args, tactics=[tactic]).explain("collectives")
    assert (told.kind, told.count, told.alike) == ("all_reduce", 6, (0,))
    assert told.total_seconds == 6 * told.seconds
    assert "6 times a step" in str(told)


def test_the_longest_come_first():
    told = plan_sgd(BATCH, FSDP).explain("collectives", alternatives=0)
    times = [entry.total_seconds for entry in told]
    assert times == sorted(times, reverse=True)


def test_a_collective_by_itself_by_its_number_and_in_text():
    made = plan_sgd(BATCH, FSDP)
    one = made.collectives[1]
    texts = {str(made.explain(which, 0)) for which in (one, 1, "1", "#1")}
    assert len(texts) == 1
    assert str(one).startswith("#1 ")
    assert "#1: " in str(made.spmd)


# -------------------------------------------------------------------------------- alternatives


def test_leaving_an_action_out_costs_what_the_schedule_without_it_costs():
    made = plan_mlp(BATCH, COLUMNS)
    dropped = starting(only(made.explain(0)), "without w1 -> model")
    assert costs(dropped, plan_mlp(BATCH), made)
    assert dropped.collectives == ()


def test_wishes_that_lead_to_the_same_are_left_out_together():
    both = pt.ManualPartition({"w1": 1, "w2": 0}, axis="model")
    made = plan_mlp(BATCH, both)
    dropped = starting(only(made.explain(0)), "without ")
    assert dropped.change == "without w1, w2 -> model in history[1]"
    assert costs(dropped, plan_mlp(BATCH), made)


def test_keeping_a_value_whole_costs_what_the_schedule_that_says_so_costs():
    made = plan_mlp(BATCH, COLUMNS)
    kept = starting(only(made.explain(0)), "keep hidden replicated along model")
    whole = pt.ManualPartition({"hidden": "replicate"}, axis="model")
    assert costs(kept, plan_mlp(BATCH, whole, COLUMNS), made)


def test_splitting_a_sum_costs_what_the_schedule_that_splits_it_costs():
    made = plan_mlp(BATCH, COLUMNS)
    split = starting(only(made.explain(0)), "shard the sum along model too, on dim 1")
    assert costs(split, made.then(pt.ManualPartition({"result": 1}, axis="model")), made)
    assert split.collectives[0].startswith("reduce_scatter(model)")


def test_the_gather_of_fsdp_against_a_weight_that_stays_whole():
    made = plan_sgd(BATCH, FSDP)
    number = next(
        c.index for c in made.collectives if c.kind == "all_gather" and c.value == "params['w1']"
    )
    told = only(made.explain(number))
    dropped = starting(told, "without params['w1'] -> data")
    other = plan_sgd(BATCH, pt.ManualPartition({"params['w2']": 1}, axis="data"))
    assert costs(dropped, other, made)
    assert dropped.peak_memory_change > 0
    without_batch = starting(told, "without x -> data")
    assert costs(without_batch, plan_sgd(FSDP), made)


@pytest.mark.parametrize(("resolve", "other"), [(0, 1), (1, 0)])
def test_giving_a_conflict_to_the_other_role(resolve, other):
    made = plan_attention(resolve)
    told = max(made.explain("collectives"), key=lambda c: c.total_seconds)
    given = starting(told, f"give seq to role {other}")
    assert costs(given, plan_attention(other), made)


def test_alternatives_come_best_first_and_worse_ones_are_shown():
    made = plan_attention(resolve=0)
    told = only(made.explain(0))
    times = [a.step_time for a in told.alternatives]
    assert times == sorted(times)
    assert times[-1] > made.estimate.step_time
    assert "+" in str(told.alternatives[-1])


def test_gathering_again_is_what_the_plan_does_with_less_memory():
    model = models.build("gpt-tiny", layers=1)
    embed = {"wq": 0, "wk": 0, "wv": 0, "wo": 2, "w_in": 0, "w_out": 1}
    tactics = [
        pt.ManualPartition({"batch*": 0}, axis="data"),
        pt.ManualPartition({f"*['params']*['{n}']": d for n, d in embed.items()}, axis="data"),
    ]

    def made(memory=None):
        return plan(model.fn, *model.args, tactics=tactics, memory=memory, donate_argnums=0)

    plenty = made()
    number = next(c.index for c in plenty.collectives if c.kind == "all_gather")
    again = starting(only(plenty.explain(number, 12)), "gather again")
    tight = made(memory=again.peak_memory)
    assert tight.estimate.regather
    assert costs(again, tight, plenty)


def test_alternatives_have_the_memory_that_a_search_was_given():
    room = plan_sgd(BATCH, FSDP).estimate.peak_memory
    search = pt.AutomaticPartition(axes=["model"], budget=30, memory=room)
    made = plan_sgd(BATCH, FSDP, search)
    assert made.estimate.capacity == room
    told = [a for each in made.explain("collectives", 12) for a in each.alternatives]
    assert {a.fits for a in told} == {True, False}
    assert all(a.fits == (a.peak_memory <= room) for a in told)


def test_no_more_alternatives_are_tried_than_one_says():
    made = plan_mlp(BATCH, COLUMNS)
    told = only(made.explain(0, alternatives=1))
    assert len(told.alternatives) <= 1
    assert told.untried > 0
    assert f"not tried: {told.untried} more" in str(told)
    assert only(made.explain(0, alternatives=0)).alternatives == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_schedule_applied_again_without_a_change_is_the_same(seed):
    made = plan_sgd(BATCH, pt.AutomaticPartition(budget=60, seed=seed))
    for position in range(3):
        again = replay(Replay(made.done), Candidate("nothing", position))
        assert again.assignment.ops == made.assignment.ops
        assert again.assignment.values == made.assignment.values


def test_a_move_of_a_search_is_left_out_without_a_new_search():
    x = array(2**16, 64)
    made = plan(mlp, array(64, 256), array(256, 64), x, tactics=[pt.AutomaticPartition(budget=60)])
    move = made.history[0].actions[0].move
    change = Change(without_decisions=frozenset({move}))
    stage = replay(Replay(made.done), Candidate("", 0, change))
    assert stage.assignment != made.assignment


# -------------------------------------------------------------------------------------- errors


def test_a_name_that_is_not_there():
    with pytest.raises(pt.UnknownNameError, match=r"'w3' matches no .* did you mean 'w"):
        plan_mlp(COLUMNS).explain("w3")


def test_a_number_that_is_not_there():
    made = plan_mlp(BATCH, COLUMNS)
    with pytest.raises(pt.UnknownNameError, match="no collective 7; the plan has 1, numbered 0 to"):
        made.explain(7)
    with pytest.raises(pt.UnknownNameError, match="no collective -1"):
        made.explain(-1)
    with pytest.raises(pt.UnknownNameError, match=r"no value %99; those of mlp are %0 to %\d"):
        made.explain("%99")
    with pytest.raises(pt.UnknownNameError, match=r"made at other\.py:3"):
        made.explain("other.py:3")
    with pytest.raises(pt.UnknownNameError, match="the plan has 0, none at all"):
        plan_mlp(BATCH).explain(0)


def test_a_collective_of_another_plan():
    other = plan_sgd(BATCH, FSDP).collectives[0]
    with pytest.raises(pt.UnknownNameError, match="not a collective of this plan"):
        plan_mlp(BATCH, COLUMNS).explain(other)


# ------------------------------------------------------------------------------ data and speed


def test_an_explanation_is_data():
    made = plan_mlp(BATCH, COLUMNS)
    for what in ("*", "collectives"):
        told = made.explain(what)
        plain = json.loads(json.dumps(told.as_dicts()))
        assert [sorted(entry) for entry in plain] == [
            sorted(f.name for f in dataclasses.fields(entry)) for entry in told
        ]
        assert len(told) == len(list(told)) and told[0] in told
        assert str(told) == "\n\n".join(map(str, told))


def test_a_gpt_of_many_layers_is_explained_in_seconds(gpt_24l):
    made = gpt_24l.then(pt.ManualPartition({"*['params']*['w_in']": 1}, axis="model"))
    start = time.process_time()
    told = made.explain("*['params']*['w_*']")
    weights = [(e.name.rpartition("[")[2], e.count) for e in told if e.name[:5] == "state"]
    assert weights == [("'w_in']", 24), ("'w_out']", 24)]
    every = made.explain("collectives", alternatives=1)
    assert sum(len(entry.alike) for entry in every) == len(made.collectives)
    # 3 s on an idle core, of which 1 s writes the program out.
    assert time.process_time() - start < 12
