"""The best different plans that a search knows, as whole plans."""

from __future__ import annotations

import dataclasses
import itertools

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, numbers, planner, runs_as_the_original
from partita import models
from partita.planning.replay import Replay
from partita.search import ALGORITHMS
from partita.search.record import APART, near

plan = planner(mesh="data=4,model=2")

SEARCH = pt.AutomaticPartition(budget=300)
ARGS = array(2048, 64), array(256, 64)


def step(w, x):
    return (jnp.tanh(x @ w.T) @ w).sum()


@pytest.fixture(scope="module")
def gpt():
    """The built-in model, whose arguments have names that ready-made tactics know."""
    return models.build("gpt-tiny")


@pytest.fixture(scope="module")
def searched(gpt):
    return plan(gpt.fn, *gpt.args, tactics=[SEARCH], donate_argnums=gpt.donate_argnums)


@pytest.fixture(scope="module")
def candidates(searched):
    return searched.candidates(9)


def costs(several):
    return [(each.estimate.step_time, each.estimate.peak_memory) for each in several]


# --------------------------------------------------------------------------- which there are


def test_the_plan_itself_comes_first(searched, candidates):
    assert candidates[0] is searched
    assert searched.candidates(1) == (searched,)


def test_fewer_are_the_first_of_more(searched, candidates):
    assert costs(searched.candidates(4)) == costs(candidates[:4])


def test_those_that_the_search_saw_are_apart_in_time_or_memory(searched):
    record = searched.history[-1].search
    assert len(record.candidates) > 2
    first, *others = costs([c for c in searched.candidates(20) if seen(c)])
    assert len(others) >= 2
    for (time, peak), (other_time, other_peak) in itertools.combinations(others, 2):
        far = max(abs(time / other_time - 1), abs(peak / other_peak - 1))
        assert far > APART / 2  # what is settled after a search moves them a little
    assert min(time for time, _ in others) > first[0] * 0.999


def seen(candidate):
    return candidate.history[-1].decisions[0] != "a start of the search"


@pytest.mark.parametrize(
    "tactics",
    [
        [pt.DataParallel("data"), pt.DataParallel("model")],
        [pt.DataParallel("data"), pt.Megatron("model")],
    ],
    ids=["data parallelism", "with tensor parallelism"],
)
def test_what_is_written_by_hand_is_among_them(gpt, searched, tactics):
    by_hand = plan(gpt.fn, *gpt.args, tactics=tactics, donate_argnums=gpt.donate_argnums)
    assert by_hand.assignment in [each.assignment for each in searched.candidates(30)]


def test_a_program_whose_names_say_nothing_has_starts_too():
    found = plan(step, *ARGS, tactics=[SEARCH]).candidates(4)
    assert not all(map(seen, found))


def test_those_that_do_not_fit_are_left_out_where_the_plan_does():
    memory = 400 * 2**10
    every, fitting = (
        plan(step, *ARGS, memory=limit, tactics=[SEARCH]).candidates(20) for limit in (None, memory)
    )
    assert any(each.estimate.peak_memory > memory for each in every)
    assert len(fitting) > 1 and all(each.estimate.fits for each in fitting)


def test_where_nothing_fits_the_others_say_what_they_need():
    found = plan(step, *ARGS, memory="20KiB", tactics=[SEARCH]).candidates(3)
    reasons = [refusal.reason for each in found for refusal in each.history[0].refused]
    assert [reason.split(" needs ")[0].split(" of ")[0] for reason in reasons] == [
        "the smallest",
        *["this plan"] * (len(found) - 1),
    ]
    assert len(found) > 1


def test_those_with_collectives_that_are_avoided_are_left_out():
    every, without = (
        plan(step, *ARGS, tactics=[dataclasses.replace(SEARCH, avoid=avoid)]).candidates(20)
        for avoid in ((), ("all_gather",))
    )
    kinds = [{c.kind for each in found for c in each.collectives} for found in (every, without)]
    assert "all_gather" in kinds[0] and "all_gather" not in kinds[1] and len(without) > 1


def test_two_plans_of_equal_time_are_near_whatever_memory_they_take(searched):
    cost = searched.done.stage.cost_model.cost(searched.done.lowering)
    assert near(cost, dataclasses.replace(cost, peak=2 * cost.peak))


# --------------------------------------------------------------------------- whole plans


def test_nothing_is_searched(searched, monkeypatch):
    def never(*args):
        raise AssertionError("a search")

    monkeypatch.setitem(ALGORITHMS, "iterated", never)
    assert len(searched.candidates(3)) == 3


def test_a_candidate_runs():
    w, x = numbers(32, 16), numbers(64, 16, seed=1)
    made = pt.plan(step, w, x, mesh="data=4,model=2", hardware="cpu", tactics=[SEARCH])
    _, other, *_ = made.candidates(3)
    runs_as_the_original(other, w, x, tolerance=1e-4)


def test_a_candidate_says_what_it_decides_and_can_be_decided_again(candidates):
    for each in candidates[1:4]:
        entry = each.history[-1]
        assert len(entry.decisions) > 1 and entry.actions
        assert Replay(each.done).opaque(0) is None
        assert "candidate" not in str(each) and entry.decisions[0] in str(each)


def test_a_candidate_is_saved_and_loaded(gpt, candidates, tmp_path):
    candidates[2].save(tmp_path / "plan.json")
    again = pt.load(tmp_path / "plan.json", gpt.fn, *gpt.args)
    assert again.assignment == candidates[2].assignment
    assert again.estimate == candidates[2].estimate


def test_a_candidate_has_the_others_beside_it(candidates):
    other = candidates[3]
    found = other.candidates(9)
    assert found[0] is other
    assert sorted(costs(found)) == sorted(costs(candidates))


def test_tactics_before_and_after_the_search_stay():
    search = pt.AutomaticPartition(axes=["data"], budget=100)
    first = pt.ManualPartition({"x": 0}, axis="model")
    last = pt.ManualPartition({"w": 1}, axis="model")
    made = plan(step, *ARGS, tactics=[first, search, last])
    names = [entry.name for entry in made.history]
    found = made.candidates(4)
    assert len({each.in_shardings for each in found}) > 1
    for each in found:
        assert [entry.name for entry in each.history] == names
        w, x = each.done.spmd.argument_layouts
        assert 1 in x[0] and 1 in w[1]


def test_of_several_searches_the_last_is_decided_otherwise():
    searches = [pt.AutomaticPartition(axes=[axis], budget=60) for axis in ("data", "model")]
    made = plan(step, *ARGS, tactics=searches)
    for each in made.candidates(4)[1:]:
        assert each.history[0].assignment == made.history[0].assignment
        assert each.history[1].assignment != made.history[1].assignment


# --------------------------------------------------------------------------- errors


@dataclasses.dataclass(frozen=True)
class Around:
    """A tactic of the user's, with a search in it."""

    name = "Around"

    def apply(self, stage):
        return pt.in_turn(stage, [pt.AutomaticPartition(budget=20)])


@pytest.mark.parametrize(
    ("tactics", "message"),
    [
        ([], r"has no search in its history.*plan with AutomaticPartition"),
        ([pt.ManualPartition({"x": 0}, axis="data")], r"has no search in its history"),
        ([Around()], r"is inside of Around.*put AutomaticPartition into the schedule itself"),
    ],
)
def test_a_plan_without_candidates_says_why(tactics, message):
    with pytest.raises(pt.TacticError, match=message):
        plan(step, *ARGS, tactics=tactics).candidates()


def test_a_plan_from_a_file_has_none(searched, gpt, tmp_path):
    searched.save(tmp_path / "plan.json")
    with pytest.raises(pt.TacticError, match=r"plan file does not keep what its search has seen"):
        pt.load(tmp_path / "plan.json", gpt.fn, *gpt.args).candidates()


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_a_count_that_is_none(searched, count):
    with pytest.raises(pt.OptionError, match=r"count=.*an integer of at least 1"):
        searched.candidates(count)
