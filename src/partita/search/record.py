"""Record of a search, for reports on its plan: best cost over time, and the best few plans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from partita.cost import Cost
from partita.cost.estimate import StepTime
from partita.search.problem import NOISE, Move, Problem, SearchState
from partita.tiling import Layout

PROPOSALS = 10
"""Most different plans in a record."""

APART = 0.03
"""Least relative difference of candidates in time or memory, see `near`."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A plan that became the best so far: number of evaluations until then, and its cost."""

    evaluations: int
    step_time: float
    peak_memory: float
    fits: bool


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One of the best plans of a search."""

    decisions: tuple[str, ...]
    """Decisions, in words."""
    time: StepTime
    peak_memory: float
    fits: bool
    collectives: dict[str, int]
    """Number of collectives by kind; loops count once."""
    layouts: tuple[Layout, ...] = dataclasses.field(repr=False)
    """Layouts of the arguments."""


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """Record of a search."""

    evaluations: int
    """Number of plans that were evaluated."""
    curve: tuple[Found, ...]
    """Each plan that was better than all before it."""
    proposals: tuple[Proposal, ...]
    """The best plans, best first; of those that cost the same, one."""
    candidates: tuple[tuple[Move, ...], ...] = dataclasses.field(repr=False)
    """Moves of the best plans that are not `near` each other: the chosen one, then the others, best
    first."""


def record(
    problem: Problem, taken: SearchState, describe: Callable[[SearchState], tuple[str, ...]]
) -> SearchRecord:
    """Returns the record of what searches have done so far on a problem.

    Args:
      problem: the problem that was searched.
      taken: the chosen state, which another process may have found.
      describe: returns the decisions of a state in words.
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
    """Returns whether two plans will hardly differ once compiled, in time and memory.

    Most of the best plans of a search are that near. If both take equally long, memory does not
    matter.
    """
    times = a.time.step_time, b.time.step_time
    close = math.isclose(*times, rel_tol=APART) and math.isclose(a.peak, b.peak, rel_tol=APART)
    return close or math.isclose(*times, rel_tol=NOISE)
