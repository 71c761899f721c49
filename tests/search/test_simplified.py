"""Plans in fewer decisions: what tile actions say of them, and the classes that count."""

from __future__ import annotations

import pytest

from partita.decisions import DecisionGroup, ShardClass, ShardColor
from partita.decisions.group import HARD
from partita.search.problem import NOISE
from partita.search.simplified import FEW, changed, class_by_class, covering, simplified
from searching import SIZES, mlp


def layouts(tiling):
    return tiling.ops, tiling.values


def every_class_for_itself(problem, moves):
    """The state after moves, as one that lays out every class for itself."""
    return problem.replay((class_by_class(problem, problem.replay(moves).tiling),))


@pytest.mark.parametrize("sizes", SIZES)
def test_what_tile_actions_do_is_said_as_tile_actions(sizes):
    problem = mlp(sizes)
    moves = (problem.moves[0], problem.moves[3])
    state = every_class_for_itself(problem, moves)
    assert any(isinstance(move, DecisionGroup) for move in state.moves)
    found = simplified(problem, state)
    assert problem.time(found) <= problem.time(state) * (1 + NOISE)
    assert len(found.moves) <= 4
    assert all(isinstance(move, ShardColor) for move in found.moves)


def test_tile_actions_that_are_found_lead_to_the_same_layouts():
    problem = mlp()
    target = problem.replay(problem.moves[:3]).tiling
    tiles, tiling = covering(problem, target)
    assert len(tiles) <= 3
    assert layouts(tiling) == layouts(target)


def test_what_is_left_is_said_class_by_class():
    problem = mlp()
    before = problem.replay(problem.moves[:1]).tiling
    after = problem.replay(problem.moves[2:4]).tiling
    tiling = before
    for action in changed(problem, before, after):
        tiling = action.take(problem.propagator, tiling).tiling
    assert layouts(tiling) == layouts(after)


def test_a_class_that_makes_no_difference_is_left_as_its_color_has_it():
    """A local action that is undone again, and one that gains nothing."""
    problem = mlp()
    state = problem.replay(problem.moves[:1])
    scalar = next(v for v in problem.graph.values if not v.value.type.shape or v.is_result)
    needless = ShardClass("value", scalar.members[0], 0, -1)
    found = simplified(problem, problem.replay((DecisionGroup((needless,)), *state.moves)))
    assert found.moves == state.moves


def test_fewer_decisions_that_make_a_slower_plan_are_not_taken(monkeypatch):
    problem = mlp()
    by_peak = sorted(problem.moves, key=lambda move: problem.replay((move,)).cost.peak)
    state = every_class_for_itself(problem, by_peak[-1:])
    other = problem.replay(by_peak[:1])
    inside = "partita.search.simplified."
    monkeypatch.setattr(f"{inside}covering", lambda *_: (other.moves, other.tiling))
    monkeypatch.setattr(f"{inside}_without_needless", lambda *_: other)
    for seconds, taken in ((1.0, other), (2.0, state)):
        monkeypatch.setattr(problem, "time", lambda each, s=seconds: s if each is other else 1.0)
        assert simplified(problem, state) is taken


def test_plans_that_can_be_read_stay_as_they_are():
    problem = mlp()
    state = problem.replay(problem.moves[:2])
    assert simplified(problem, state) is state


def test_many_changes_of_classes_count_as_many_as_nobody_reads():
    action = ShardClass("op", 0, 0, 0)
    assert [DecisionGroup((action,) * n).weight for n in (1, HARD, 10 * HARD)] == [1, HARD, HARD]
    assert FEW <= HARD
