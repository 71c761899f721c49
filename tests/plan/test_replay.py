"""Any tactic's decisions can be taken again with a change: a user's own, a search's, a file's."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding

import partita as pt
from checks import array, planner
from partita.decisions import Request
from partita.planning.replay import Replay
from partita.tactics import place
from partita.tactics.pinned import Pinned
from partita.tactics.sequence import _Sequence
from partita.tiling import Assignment

plan = planner(mesh="data=4,model=2")

BATCH = pt.ManualPartition({"x": 0}, axis="data")
COLUMNS = pt.ManualPartition({"w1": 1}, axis="model")
ARGS = array(256, 1024), array(1024, 256), array(2048, 256)
WEIGHTS = {"w1": array(64, 256), "w2": array(256, 64)}
STEP = WEIGHTS, {"mu": WEIGHTS}, array(2**16, 64)
ROWS = pt.ManualPartition({"w2": 1}, axis="data")
SEARCH = pt.AutomaticPartition(axes=["model"], budget=40)


def mlp(w1, w2, x):
    hidden = jax.nn.relu(x @ w1)
    return checkpoint_name(hidden, "hidden") @ w2


def tower(layers, x):
    for w in layers:
        x = jax.nn.softmax(x @ x.swapaxes(1, 2)) @ x @ w
    return x


@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["names"])
@dataclasses.dataclass
class Box:
    """An array with names for its dimensions, as Flax has it."""

    value: jax.Array
    names: tuple[str, ...]

    def unbox(self):
        return self.value


def boxed(w1, w2, x):
    return mlp(w1.unbox(), w2.unbox(), x)


def constrained(w1, w2, x):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, jax.P("data"))
    return jax.lax.with_sharding_constraint(jax.nn.relu(x @ w1), rows) @ w2


def updated(loss, params, opt_state):
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, opt_state["mu"], jax.grad(loss)(params))
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, mu), {"mu": mu}


def step(params, opt_state, x):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2)

    return updated(loss, params, opt_state)


def biased(params, opt_state, x):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] + params["b"]) ** 2)

    return updated(loss, params, opt_state)


@dataclasses.dataclass(frozen=True)
class Own:
    """A user's tactic that applies others, and says so in its own words."""

    tactics: tuple[pt.Tactic, ...]
    name: str = "Own"

    def apply(self, stage):
        outcome = pt.in_turn(stage, self.tactics)
        return dataclasses.replace(outcome, decisions=("as I say",))


@dataclasses.dataclass(frozen=True)
class Wide:
    """A user's tactic that looks for what is wide, and places it."""

    axis: str
    least: int = 512
    name: str = "Wide"

    def apply(self, stage):
        program = stage.context.analysis.program
        requests = [
            Request(name, value, (dim,))
            for name, value in zip(program.argument_names, program.arguments, strict=True)
            for dim, size in enumerate(program.values[value].type.shape)
            if size >= self.least and not name.startswith("x")
        ]
        return place(stage, requests, stage.context.mesh.axis(self.axis))


@dataclasses.dataclass(frozen=True)
class Sealed:
    """A user's tactic that computes where things go, and only says that."""

    axis: str
    name: str = "Sealed"

    def apply(self, stage):
        context = stage.context
        program, axis = context.analysis.program, context.mesh.axis(self.axis)
        value = program.arguments[program.argument_names.index("w1")]
        found = context.single.tile_nodes(stage.tiling, [("value", value, 1)], axis, {}).tiling
        return pt.Outcome(
            Assignment(found.ops, found.values, found.pinned),
            actions=(pt.Action(self.axis, "w1 dim 1", ((value, 1),)),),
        )


def told(made, number=0, alternatives=12):
    (entry,) = made.explain(number, alternatives)
    return entry


def change(entry, text):
    """The alternative whose change starts with a text, as its costs."""
    (found,) = (a for a in entry.alternatives if a.change.startswith(text))
    return found.step_time, found.peak_memory


def costs(made):
    return made.estimate.step_time, made.estimate.peak_memory


def alternatives(made):
    return [(entry.alternatives, entry.unknown) for entry in made.explain("collectives", 40)]


# ---------------------------------------------------------------------------------- a user's own


def test_what_a_tactic_of_tactics_decided_is_changed_as_by_hand():
    made = plan(mlp, *ARGS, tactics=[BATCH, Own((COLUMNS,))])
    entry = told(made)
    assert change(entry, "without w1 -> model in history[1]") == costs(
        plan(mlp, *ARGS, tactics=[BATCH])
    )
    kept = pt.ManualPartition({"hidden": "replicate"}, axis="model")
    assert change(entry, "keep hidden replicated along model") == costs(
        plan(mlp, *ARGS, tactics=[BATCH, kept, Own((COLUMNS,))])
    )
    assert entry.unknown == ()


def test_what_comes_before_a_tactic_of_tactics_is_changed_as_by_hand():
    made = plan(mlp, *ARGS, tactics=[BATCH, Own((COLUMNS,)), ROWS])
    gather = next(e for e in made.explain("collectives", 40) if e.kind == "all_gather")
    assert change(gather, "without x -> data in history[0]") == costs(
        plan(mlp, *ARGS, tactics=[Own((COLUMNS,)), ROWS])
    )


def test_what_a_tactic_placed_itself_is_changed_as_by_hand():
    made = plan(mlp, *ARGS, tactics=[BATCH, Wide("model")])
    entry = told(made)
    assert [a.what for a in made.history[1].actions] == ["w1 dim 1", "w2 dim 0"]
    assert change(entry, "without ") == costs(plan(mlp, *ARGS, tactics=[BATCH]))
    kept = pt.ManualPartition({"hidden": "replicate"}, axis="model")
    assert change(entry, "keep hidden replicated") == costs(
        plan(mlp, *ARGS, tactics=[BATCH, kept, Wide("model")])
    )


def test_a_search_inside_a_tactic_is_not_made_again():
    made = plan(step, *STEP, tactics=[Own((pt.AutomaticPartition(budget=60),))])
    assert made.history[0].actions
    apart = plan(step, *STEP, tactics=[pt.AutomaticPartition(budget=60)])
    assert alternatives(made) == alternatives(apart)
    assert any("in history[0]" in a.change for found, _ in alternatives(made) for a in found)


def test_what_a_tactic_does_not_say_is_not_guessed():
    made = plan(mlp, *ARGS, tactics=[BATCH, Sealed("model"), ROWS])
    assert made.history[1].tiled["w2"] == ("model", None)
    entry = next(e for e in made.explain("collectives", 40) if e.axes == ("model",))
    assert not any("history[1]" in a.change or "history[0]" in a.change for a in entry.alternatives)
    assert entry.unknown == (
        "changes of history[1], Sealed, and of what comes before it: the decisions of its outcome "
        "do not lead to what it decided",
    )
    assert f"  not known: {entry.unknown[0]}" in str(entry)
    # What comes after it can be changed.
    gather = next(e for e in made.explain("collectives", 40) if e.kind == "all_gather")
    assert change(gather, "without w2 -> data in history[2]") == costs(
        plan(mlp, *ARGS, tactics=[BATCH, Sealed("model")])
    )


def test_an_assignment_that_other_decisions_lead_to_is_noticed():
    class Half:
        """Says what its second half decided only."""

        name = "Half"

        def apply(self, stage):
            return COLUMNS.apply(stage.after(BATCH.apply(stage)))

    made = plan(mlp, *ARGS, tactics=[Half()])
    assert Replay(made.done).opaque(0) == 0
    assert told(made).unknown


def test_a_seed_is_left_out_of_one_tactic_only():
    again = pt.ManualPartition({"w1": 1, "w2": 0}, axis="model")
    made = plan(mlp, *ARGS, tactics=[BATCH, COLUMNS, again])
    entry = told(made)
    # history[2] asks for the same, so that nothing changes, as by hand.
    assert plan(mlp, *ARGS, tactics=[BATCH, again]).assignment == made.assignment
    assert not any(a.change.startswith("without w1 -> model") for a in entry.alternatives)


def test_the_other_role_of_a_sequence_that_is_sharded_as_a_whole():
    def made(resolve):
        tactic = _Sequence(pt.SequenceParallel("model", batch={"x": 1}, resolve=resolve))
        args = [array(16, 16)] * 2, array(4, 64, 16)
        return plan(tower, *args, tactics=[tactic], mesh="model=2")

    entries = made(0).explain("collectives", 40)
    given = [a for e in entries for a in e.alternatives if a.change.startswith("give model to")]
    assert {(a.step_time, a.peak_memory) for a in given} == {costs(made(1))}


@pytest.mark.parametrize("stage", [1, 2])
def test_a_suggestion_keeps_what_the_tactic_has_pinned(stage):
    weights = {"w1": array(64, 8), "w2": array(8, 6), "b": array(6)}
    made = plan(
        biased,
        weights,
        {"mu": weights},
        array(512, 64),
        tactics=[pt.DataParallel(), pt.ZeRO(stage)],
    )
    (suggestion, *_) = made.suggestions()
    assert suggestion.text == "keep opt_state['mu']['b'] replicated along data"
    # It is replicated already, as its size does not divide.
    assert suggestion.estimate == made.estimate


# --------------------------------------------------------------------------- every tactic there is


SCHEDULES = {
    "manual": (mlp, ARGS, [BATCH, COLUMNS, pt.ManualPartition({"hidden": "replicate"}, "data")]),
    "pinned": (mlp, ARGS, [BATCH, Pinned(COLUMNS, at=("hidden",)), SEARCH]),
    "search": (step, STEP, [pt.AutomaticPartition(budget=60, pinned=["params['w2']"])]),
    "several searches": (step, STEP, [SEARCH, pt.AutomaticPartition(budget=60, seed=1)]),
    "own": (mlp, ARGS, [Own((BATCH, SEARCH)), Wide("model")]),
    "shardings of the program": (constrained, ARGS, [COLUMNS, SEARCH]),
    "logical axes": (
        boxed,
        (Box(ARGS[0], ("embed", "mlp")), Box(ARGS[1], ("mlp", "embed")), ARGS[2]),
        [pt.LogicalAxes({"embed": "data", "mlp": "model"}), BATCH],
    ),
    **{
        f"zero {stage}": (
            step,
            STEP,
            [pt.DataParallel(), pt.ZeRO(stage), SEARCH],
        )
        for stage in (1, 2, 3)
    },
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_decisions_that_are_taken_again_unchanged_lead_to_the_same(name):
    fn, args, tactics = SCHEDULES[name]
    made = plan(fn, *args, tactics=tactics)
    again = Replay(made.done)
    assert again.opaque(0) is None
    for position in range(len(tactics) + 1):
        assert again.from_tactic(position).assignment == made.assignment


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_plan_from_a_file_has_the_same_alternatives(name, tmp_path):
    fn, args, tactics = SCHEDULES[name]
    made = plan(fn, *args, tactics=tactics)
    made.save(tmp_path / "plan.json")
    kept = pt.load(tmp_path / "plan.json", fn, *args)
    assert kept.history == made.history
    assert any(found for found, _ in alternatives(made))
    assert alternatives(kept) == alternatives(made)
    assert str(kept.explain("collectives", 40)) == str(made.explain("collectives", 40))


def test_a_file_does_not_hold_what_a_tactic_does_not_say(tmp_path):
    made = plan(mlp, *ARGS, tactics=[BATCH, Sealed("model")])
    made.save(tmp_path / "plan.json")
    kept = pt.load(tmp_path / "plan.json", mlp, *ARGS)
    assert alternatives(kept) == alternatives(made)
    assert told(kept).unknown


# ------------------------------------------------------------------------------------ former names


def test_former_names_warn_and_work():
    with pytest.warns(
        DeprecationWarning, match=r"now called AutomaticPartition\(pinned=\)"
    ) as told:
        search = pt.AutomaticPartition(freeze=["w2"])
    assert told[0].filename == __file__
    assert search == pt.AutomaticPartition(pinned=["w2"])
    refused = plan(lambda x: x, array(6, 4), tactics=[BATCH])
    with pytest.warns(DeprecationWarning, match="now called Plan.suggestions"):
        assert refused.alternatives() == refused.suggestions()
    with pytest.warns(DeprecationWarning, match="now called Refusal.suggestions"):
        assert refused.history[0].refused[0].alternatives == refused.suggestions()
    with pytest.warns(DeprecationWarning, match="now called TacticReport.replicated_uses"):
        assert refused.history[0].whole == ()
    with pytest.warns(DeprecationWarning, match="now called ValueExplanation.shard"):
        assert refused.explain("x")[0].piece == "f32[6,4]"
