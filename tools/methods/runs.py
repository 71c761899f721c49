"""Runs of methods on cases: what each found, after how many states and seconds; kept in a file."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from partita.errors import TacticError
from partita.garbage import paused
from partita.search import Problem, SearchState
from partita.search.bounds import lower_bound
from partita.search.iterated import MOST_AXES
from tools.methods import METHODS
from tools.methods.cases import Case, Problems


@dataclasses.dataclass(frozen=True)
class Point:
    """The best plan so far, when it was found."""

    states: int
    seconds: float
    step_time: float
    """Of one that fits; infinite before there is one."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a method."""

    case: Case
    method: str
    budget: int
    seed: int
    states: int
    """How many were evaluated."""
    seconds: float
    step_time: float
    """Infinite if nothing that fits was found."""
    moves: int
    curve: tuple[Point, ...]
    refused: str = ""
    """Why the method did not run, if it did not."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for runs that are the same."""
        return self.case, self.method, self.budget, self.seed


class _Recorded(Problem):
    """A problem that notes when a better plan is found."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.points: list[Point] = []
        self.started = time.perf_counter()
        self._note()

    def improve(self, state: SearchState) -> None:
        """Takes note of a state that is better than all before."""
        super().improve(state)
        self._note()

    def _note(self) -> None:
        seconds = time.perf_counter() - self.started
        self.points.append(Point(self.evaluations, seconds, step_time(self, self.best)))


def step_time(problem: Problem, state: SearchState) -> float:
    """The step time of a plan, infinite if it does not fit."""
    fits = state.cost.peak <= problem.cost_model.capacity
    return state.cost.time.step_time if fits else float("inf")


def run(problems: Problems, case: Case, method: str, budget: int, seed: int) -> Run:
    """Runs a method on a new problem."""
    problem = problems.of(case, _Recorded)
    assert isinstance(problem, _Recorded)
    refused, moves, best = "", 0, float("inf")
    problem.started = time.perf_counter()
    try:
        with paused():
            found = METHODS[method](problem, budget, seed, lambda done, best: None)
        moves, best = len(found.moves), step_time(problem, found)
    except TacticError as error:
        refused = str(error)
    seconds = time.perf_counter() - problem.started
    curve = tuple(problem.points)
    return Run(
        case, method, budget, seed, problem.evaluations, seconds, best, moves, curve, refused
    )


def append(path: Path, found: Run) -> None:
    """Adds a run to a file, as a line of JSON."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(found)) + "\n")


def load(path: Path) -> Iterator[Run]:
    """The runs in a file; none if there is no file."""
    if not path.exists():
        return
    for line in path.read_text("utf-8").splitlines():
        fields = json.loads(line)
        fields["case"] = Case(**fields["case"])
        fields["curve"] = tuple(Point(**point) for point in fields["curve"])
        yield Run(**fields)


def best_known(runs: Iterable[Run]) -> dict[Case, float]:
    """The least step time of each case, of all methods, budgets and seeds."""
    best: dict[Case, float] = {}
    for each in runs:
        times = [point.step_time for point in each.curve]
        best[each.case] = min(best.get(each.case, float("inf")), each.step_time, *times)
    return best


def bounds(problems: Problems, cases: Iterable[Case], path: Path) -> dict[Case, float]:
    """Lower bounds on step times, from a file where it has them; 0 where there is none."""
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found = {}
    for case in cases:
        if case.name not in known:
            problem = problems.of(case)
            bound = lower_bound(problem) if len(problem.axes) <= MOST_AXES else None
            known[case.name] = bound.seconds if bound else 0.0
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        found[case] = known[case.name]
    return found
