"""A program searched by the default search, and all that a user may ask of the plan.

What a search meets depends on the program: loops, branches, `shard_map`, values that nothing reads,
dimensions that nothing divides. So whatever program a test has at hand is searched, too:
the plan is printed, explained, reported, saved and loaded, and the relaxed problem, which only
larger searches build, has to have every state that moves lead to.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import partita as pt
from partita.plan import Plan
from partita.planning.prepare import Prepared
from partita.program.fingerprint import fingerprint
from partita.search import Problem, SearchState
from partita.search.bounds.bound import lower_bound, relaxed_problem
from partita.search.refine import local_actions
from partita.search.relaxed_starts import promising, relaxed_starts
from partita.search.starts import followers
from partita.tactics import AutomaticPartition

BUDGET = 10
"""Plans of a small search: those that single moves lead to, and some that follow."""

MOST_OPERATIONS = 400
"""Of programs that are searched because a test plans them."""

DESCENTS = 3
"""States from which descents of the relaxed problem begin."""

STATES = 30
"""States of random moves that are compared with the relaxed problem."""


class SearchedError(Exception):
    """A program that a test plans cannot be searched; the cause says why."""


def search_and_check(
    fn: Any, types: Sequence[Any], mesh: Any, folder: Path, seed: int = 0
) -> pt.Plan:
    """The plan of a small search, once everything has been asked of it, and states of the search
    have been compared with the relaxed problem.

    Args:
      fn: what to plan.
      types: its arguments, or their types.
      mesh: over which.
      folder: where files are written.
      seed: of the states.
    """
    plan = pt.plan(fn, *types, mesh=mesh, hardware="cpu", tactics=[])
    made = search_on(plan, folder, seed)
    made.save(folder / "plan.json")
    again = pt.load(folder / "plan.json", fn, *types)
    assert again.assignment == made.assignment
    assert list(map(_moved, again.collectives)) == list(map(_moved, made.collectives))
    return made


def search_on(plan: pt.Plan, folder: Path, seed: int = 0) -> pt.Plan:
    """A plan with a small search behind its tactics: compared, printed, explained, reported."""
    check_relaxed_problem(AutomaticPartition()._problem(plan.done.stage), seed=seed)
    made = plan.then(AutomaticPartition(budget=BUDGET))
    assert str(made) and repr(made) and str(made.spmd) and str(made.core)
    for name in (*made.program.argument_names, *made.program.result_names):
        assert str(made.explain(name))
    explained = made.explain("collectives", alternatives=2)
    assert str(explained) and explained.as_dicts() is not None
    for number, report in enumerate(made.history):
        assert str(report)
        made.suggestions(number)
    assert made.problems() is not None
    made.report(folder / "report.html")
    made.report(folder / "report.json")
    made.trace(folder / "trace.json")
    return made


@contextlib.contextmanager
def every_plan_searched(folder: Path) -> Iterator[None]:
    """Within it, every program of moderate size that is planned is searched, too, once per mesh."""
    make, seen, inside = Plan.of.__func__, set[object](), False

    def of(cls: type[Plan], prepared: Prepared, *rest: Any) -> Plan:
        nonlocal inside
        plan: Plan = make(cls, prepared, *rest)
        key = fingerprint(plan.program).digest, str(plan.mesh)
        if inside or key in seen or len(plan.program.operations) > MOST_OPERATIONS:
            return plan
        seen.add(key)
        inside = True
        try:
            search_on(make(cls, prepared, prepared.schedule([])), folder)
        except Exception as error:
            raise SearchedError(f"{plan.program.name} over {plan.mesh}") from error
        finally:
            inside = False
        return plan

    with mock.patch.object(Plan, "of", classmethod(of)):
        yield


def _moved(collective: pt.Collective) -> tuple[object, ...]:
    return collective.kind, collective.axes, collective.bytes, collective.count


def check_relaxed_problem(problem: Problem, count: int = STATES, seed: int = 0) -> int:
    """Checks that the relaxed problem has the states that random moves lead to, that it costs none
    more than it takes, and that plans which come up in it can be searched on from.

    Returns:
      How many states were compared; 0 where there is no relaxed problem.
    """
    relaxed = relaxed_problem(problem)
    if relaxed is None:
        return 0
    energies = [relaxed.energy(weight) for weight in (1.0, 0.4)]
    found = states(problem, count, seed)
    for state in found:
        time, choices = state.cost.time.step_time, relaxed.of(state.lowering)
        for energy in energies:
            assert energy.of(choices) <= time * (1 + 1e-9)
    promising(problem, relaxed, found[:DESCENTS], problem.evaluations + 2 * DESCENTS)
    bound = lower_bound(problem, 1, relaxed)
    assert bound is not None
    relaxed_starts(problem, bound, 1, problem.evaluations + DESCENTS)
    times = [state.cost.time.step_time for state in problem.states]
    assert bound.seconds <= min(times) * (1 + 1e-9)
    return len(found)


def states(problem: Problem, count: int, seed: int = 0) -> list[SearchState]:
    """States on random ways of moves: whole ones, some without sums or without a part of what they
    take, all that still can, and single classes."""
    rng, found = random.Random(seed), [problem.start]
    every = [*problem.moves, *followers(problem)]
    for _ in range(count):
        state = problem.start
        for _ in range(rng.randrange(1, 7)):
            kind = rng.random()
            local = list(local_actions(problem, state)) if kind < 0.4 else []
            if local:
                move = rng.choice(local)
            elif not every:
                break
            else:
                move = rng.choice(every)
                if kind < 0.7:
                    parts = problem.parts(problem.propagation(state, move), move)
                    left_out = tuple(n for n in range(len(parts)) if rng.random() < 0.3)
                    whole = bool(left_out) or rng.random() < 0.5
                    move = msgspec.structs.replace(move, without=left_out, sums=whole)
            state = problem.step(state, move) or state
            found.append(state)
        if len(found) >= count:
            break
    return found
