"""A kind of decision is one class: files, rebasing and explanations know no kind.

The kind that is defined here, and nowhere else, pins a value against an axis.
"""

from __future__ import annotations

import dataclasses
import json

import jax
import msgspec
import pytest

import partita as pt
from checks import array, planner
from partita.decisions import (
    LOST,
    Change,
    Decision,
    DecisionGroup,
    Request,
    ShardClass,
    ShardColor,
    ShardValues,
    apply,
    from_row,
    kinds,
    to_row,
    translated,
)
from partita.decisions.references import Axis, Value

MESH = "data=2,model=4"
BATCH = pt.ManualPartition({"x": 0}, axis="data")
HIDDEN = pt.ManualPartition({"w1": 1}, axis="model")


class PinForTests(Decision, frozen=True, tag="pin_for_tests"):
    """Pins a value against an axis."""

    value: Value
    axis: Axis

    def apply(self, stage):
        return stage.pinned([(self.value, self.axis)])

    def describe(self, stage):
        return f"{stage.context.analysis.program.describe(self.value)} stays whole"


@dataclasses.dataclass(frozen=True)
class KeepWhole:
    """Decides `PinForTests` of an argument."""

    argument: str
    axis: str = "model"

    @property
    def name(self):
        return f"KeepWhole({self.argument})"

    def apply(self, stage):
        program = stage.context.analysis.program
        value = program.arguments[program.argument_names.index(self.argument)]
        decision = PinForTests(value, stage.context.mesh.axis(self.axis))
        reached = apply(stage, [decision])
        said = (decision.describe(stage),)
        return pt.Outcome(reached.assignment, decisions=said, decided=(decision,))


def mlp(w1, w2, x):
    return jax.nn.relu(x @ w1) @ w2


ARGS = array(16, 32), array(32, 16), array(8, 16)


def planned(fn=mlp, *tactics, **options):
    return planner(mesh=MESH)(fn, *ARGS, tactics=tactics, **options)


@pytest.fixture
def plan():
    return planned(mlp, KeepWhole("w2"), BATCH, HIDDEN)


def test_it_decides(plan):
    assert planned(mlp, BATCH, HIDDEN).in_shardings[1] == jax.sharding.PartitionSpec("model")
    assert plan.in_shardings[1] == jax.sharding.PartitionSpec()
    assert plan.history[0].decisions == ("w2 stays whole",)


def test_it_is_saved_and_loaded(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    entry = json.loads((tmp_path / "plan.json").read_text())["history"][0]
    assert entry["decided"] == [{"decision": "pin_for_tests", "value": 1, "axis": "model"}]
    assert pt.load(tmp_path / "plan.json", mlp, *ARGS).history == plan.history


def test_it_is_kept_where_the_program_has_changed(plan, tmp_path):
    plan.save(tmp_path / "plan.json")

    def more(w0, w1, w2, x):
        return jax.nn.relu((x * w0) @ w1) @ w2

    args = array(16), *ARGS
    again = pt.load(tmp_path / "plan.json", more, *args, rebase=True)
    assert again.history[0].decided == (PinForTests(2, 1),)
    assert again.in_shardings[2] == jax.sharding.PartitionSpec()
    other = pt.load(tmp_path / "plan.json", mlp, *ARGS, mesh="data=8", rebase=True)
    assert "has no axis model" in str(other.not_kept[0])


def test_it_is_explained(plan):
    assert all(not entry.unknown for entry in plan.explain("collectives", 20))


def test_a_row_names_what_the_program_has_not(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text().replace('"pin_for_tests"', '"pin_of_nobody"')
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(pt.FileError):
        pt.load(tmp_path / "plan.json", mlp, *ARGS)


# ---------------------------------------------------------------------------------- as JSON data

EVERY = [
    ShardColor(3, 1, ((0, 2),), (1, 4), False),
    ShardColor(-1, 0),
    ShardClass("op", 5, 1, 2),
    ShardClass("value", 5, 0, -1),
    ShardValues((Request("w", 1, (0, 1), "w*", True),), 0, (4,), ((1, 2),), True, True, "widths"),
    DecisionGroup((ShardColor(3, 1), ShardClass("op", 5, 1, 2)), ((7, 0),)),
    DecisionGroup((DecisionGroup((PinForTests(2, 1),)),)),
]


@pytest.mark.parametrize("decision", EVERY, ids=lambda each: type(each).__name__)
def test_data_stand_for_decisions(decision):
    row = json.loads(json.dumps(to_row(decision, ["data", "model"])))
    assert "data" in str(row) or "model" in str(row)

    def numbered(refers, item, within):
        return ["data", "model"].index(item) if refers == "axis" else item

    assert from_row(translated(row, numbered)) == decision


def test_what_is_referred_to_is_said():
    seen = []

    def visit(refers, item, within):
        seen.append((refers, item, within.get("name", "")))
        return item

    translated(msgspec.to_builtins(EVERY[4]), visit)
    assert seen == [
        ("value", 1, "w"),
        ("dim", 0, "w"),
        ("dim", 1, "w"),
        ("axis", 0, ""),
        ("value", 4, ""),
        ("role", (1, 2), ""),
    ]


def test_of_a_list_what_is_lost_is_left_out_and_nothing_else():
    row = to_row(EVERY[5], ["data", "model"])

    def without(kind):
        return lambda refers, item, within: LOST if refers == kind else item

    assert [each["decision"] for each in translated(row, without("color"))["decisions"]] == [
        "shard_class"
    ]
    assert translated(row, without("value"))["pins"] == []
    assert translated(row["decisions"][0], without("axis")) is LOST


@pytest.mark.parametrize(
    "row",
    [
        {"decision": "shard_color", "color": -2, "axis": 0},
        {"decision": "shard_color", "axis": 0},
        {"decision": "no such kind"},
        {"color": 0, "axis": 0},
        {"decision": "shard_class", "kind": "loop", "member": 0, "axis": 0, "place": 0},
        {"decision": "group", "decisions": [{"decision": "shard_color"}]},
        {"decision": "group", "decisions": [3]},
    ],
    ids=str,
)
def test_what_is_no_decision_is_an_error(row):
    with pytest.raises(msgspec.ValidationError):
        from_row(row)


def test_what_has_another_form_is_lost_by_itself_also_in_a_group():
    program = planned(mlp, BATCH).program
    wrong, right = ShardClass("value", 0, 1, 7), ShardClass("value", 0, 1, 1)
    group, lost = DecisionGroup((wrong, right)), []
    assert "no place 7" in group.problem(program)
    assert group.fitting(program, lost.append) == DecisionGroup((right,))
    assert len(lost) == 1
    assert wrong.fitting(program, lost.append) is None


def test_every_kind_has_a_tag_of_its_own():
    assert {"shard_values", "shard_color", "shard_class", "group", "layouts"} <= set(kinds())
    assert len(set(kinds().values())) == len(kinds())


# ------------------------------------------------------------------------------------- changes


def test_a_change_leaves_out_and_resolves_otherwise():
    color = ShardColor(3, 1, ((0, 2),))
    group = DecisionGroup((color, ShardClass("op", 5, 1, 2)))
    without = group.changed(Change(without_decisions=frozenset({color})))
    assert without == DecisionGroup((ShardClass("op", 5, 1, 2),))
    assert color.changed(Change(roles=frozenset({(0, 1, 9)}))).roles == ((0, 9),)
    assert color.changed(Change(roles=frozenset({(0, 0, 9)}))) == color
    values = ShardValues((Request("w", 1, [0]), Request("v", 2, [1])), 0)
    left = values.changed(Change(without=frozenset({(1, 0, 0)})))
    assert [request.name for request in left.requests] == ["v"]


def test_decisions_over_classes_share_those_of_the_stage_before_them():
    """One after the other, each on its own classes, they lead to the same where no class splits."""
    plan = planned(mlp, BATCH)
    stage = plan.done.stage
    first, second = ShardColor(0, 1), ShardColor(1, 1)
    together = apply(stage, [first, second]).assignment
    assert apply(apply(stage, [first]), [second]).assignment == together
    assert apply(stage, [DecisionGroup((first, second))]).assignment == together
