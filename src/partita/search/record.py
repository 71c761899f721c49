"""What a search did, for who looks at its plan: how the best came down, and the best few plans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from partita.cost import Cost
from partita.cost.estimate import StepTime
from partita.search.problem import NOISE, Move, Problem, SearchState
from partita.tiling import Layout

PROPOSALS = 10
"""How many different plans a record has."""

APART = 0.03
"""By how much candidates differ in time or memory, see `near`."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A plan became the best so far: after how many evaluations, and what it costs."""

    evaluations: int
    step_time: float
    peak_memory: float
    fits: bool


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One of the best plans of a search."""

    decisions: tuple[str, ...]
    """What was decided, in words."""
    time: StepTime
    peak_memory: float
    fits: bool
    collectives: dict[str, int]
    """How many of each kind; loops count once."""
    layouts: tuple[Layout, ...] = dataclasses.field(repr=False)
    """Of the arguments."""


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """What a search did."""

    evaluations: int
    """How many plans were evaluated."""
    curve: tuple[Found, ...]
    """Each plan that was better than all before it."""
    proposals: tuple[Proposal, ...]
    """The best plans, best first; of those that cost the same, one."""
    candidates: tuple[tuple[Move, ...], ...] = dataclasses.field(repr=False)
    """The moves of the best plans that are not `near` each other: the one that was taken, then the
    others, best first."""


def record(
    problem: Problem, taken: SearchState, describe: Callable[[SearchState], tuple[str, ...]]
) -> SearchRecord:
    """What has been done so far on a problem.

    Args:
      problem: that was searched.
      taken: the state that is taken, which another process may have found.
      describe: says what was decided in a state.
    """
    capacity, graph = problem.cost_model.capacity, problem.graph
    curve: list[Found] = []
    best: SearchState | None = None
    for number, state in enumerate((*problem.states, taken)):
        if best is None or problem.better(state, best):
            best, peak = state, state.cost.peak
            number = min(number, problem.evaluations)
            curve.append(Found(number, state.cost.time.step_time, peak, peak <= capacity))
    classes = [graph.value_class[value] for value in graph.program.arguments]
    proposals = tuple(
        Proposal(
            describe(state),
            state.cost.time,
            state.cost.peak,
            state.cost.peak <= capacity,
            state.lowering.counts(),
            tuple(state.tiling.values[index] for index in classes),
        )
        for state in problem.different((taken, *problem.states), PROPOSALS)
    )
    apart = problem.different(problem.states, PROPOSALS, near)
    others = (state for state in apart if not near(state.cost, taken.cost))
    candidates = tuple(state.moves for state in (taken, *others))
    return SearchRecord(problem.evaluations, tuple(curve), proposals, candidates)


def near(a: Cost, b: Cost) -> bool:
    """Whether a compiler will hardly see a difference between two plans: of time or memory.

    Most of the best plans of a search are as near as that. Nor does it matter which of two takes
    more memory, if both take as long.
    """
    times = a.time.step_time, b.time.step_time
    close = math.isclose(*times, rel_tol=APART) and math.isclose(a.peak, b.peak, rel_tol=APART)
    return close or math.isclose(*times, rel_tol=NOISE)
