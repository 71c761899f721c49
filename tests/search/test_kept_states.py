"""Of many states, what only helps to start from them is kept of the latest, and found again."""

from __future__ import annotations

import pytest

from partita.search import iterated_search, problem
from searching import mlp, run


@pytest.fixture
def forgetful(monkeypatch):
    """Searches keep next to nothing of states."""
    monkeypatch.setattr(problem, "MEMORY", 0)
    monkeypatch.setattr(problem, "FEWEST", 5)


@pytest.mark.parametrize("mesh", ["data=4,model=2", "x=2,y=2,z=2"])
def test_a_search_finds_the_same_with_less_memory(mesh, request):
    whole = mlp(mesh=mesh)
    found = run(iterated_search, whole, budget=600)
    request.getfixturevalue("forgetful")
    less = mlp(mesh=mesh)
    again = run(iterated_search, less, budget=600)
    assert (again.moves, again.cost.time, again.cost.peak) == (
        found.moves,
        found.cost.time,
        found.cost.peak,
    )
    pairs = list(zip(whole.states, less.states, strict=True))
    assert all(one.key == other.key and one.cost.peak == other.cost.peak for one, other in pairs)


def test_few_states_are_whole(forgetful):
    """The start, and the latest, or those that others have been started from."""
    p = mlp()
    run(iterated_search, p, budget=200)
    states = list(p.states)
    assert sum(state.lowering.situation is not None for state in states) == 1 + 5
    assert len(states) > 100


def test_what_was_left_out_is_found_again_once(forgetful, monkeypatch):
    p = mlp()
    run(iterated_search, p, budget=200)
    old = next(state for state in p.states if state.lowering.situation is None)
    lowered = []
    lower = p.lowerer.lower
    monkeypatch.setattr(
        p.lowerer, "lower", lambda *given: lowered.append(len(given)) or lower(*given)
    )
    after = [state for move in p.moves if (state := p.step(old, move)) is not None]
    assert len(after) > 1
    assert lowered.count(1) <= 1
