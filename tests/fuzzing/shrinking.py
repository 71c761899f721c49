"""Makes a faulty example small, as long as it shows the same fault."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from fuzzing.checking import Checker
from fuzzing.pool import Pool, Step, needed
from fuzzing.programs import Program, Schedule

Example = tuple[Program, Schedule]


def fault(program: Program, schedule: Schedule) -> str:
    """The kind of fault that an example shows; empty if it shows none."""
    try:
        Checker(program).check(schedule)
    except Exception as error:
        return kind(error)
    return ""


def kind(error: Exception) -> str:
    """What faults of one kind have in common: the start of the message, without its numbers."""
    text = " ".join(line for line in str(error).splitlines()[:2])
    letters = "".join(c if c.isalpha() or c.isspace() else "#" for c in text)
    return f"{type(error).__name__}: {letters[:70]}".strip()


def shrink(program: Program, schedule: Schedule, seconds: float = 120) -> Example:
    """A smaller example with the same fault: fewer results, steps and tactics, no gradient.

    Steps become arguments; those inside of blocks become constants.
    """
    end = time.monotonic() + seconds
    wanted = fault(program, schedule)
    smaller = bool(wanted)
    while smaller:
        smaller = False
        for candidate in _smaller(program, schedule):
            if time.monotonic() > end:
                return program, schedule
            if fault(*candidate) == wanted:
                program, schedule = candidate
                smaller = True
                break
        else:
            for step in _inner(program.steps):
                if not step.off and time.monotonic() < end:
                    step.off = True
                    step.off = fault(program, schedule) == wanted
                    smaller |= step.off
    return program, schedule


def _smaller(program: Program, schedule: Schedule) -> Iterator[Example]:
    """Examples with less, those with much less first."""
    results = program.results
    if len(results) > 1:
        yield from ((_changed(program, results=[kept]), schedule) for kept in results)
        yield from (
            (_changed(program, results=[*results[:i], *results[i + 1 :]]), schedule)
            for i in range(len(results))
        )
    if program.gradient:
        yield _changed(program, gradient=False), schedule
    yield from ((_cut(program, step), schedule) for step in program.steps)
    manual = schedule.manual
    for i, (requests, *how) in enumerate(manual):
        fewer = [(), *((*requests[:j], *requests[j + 1 :]) for j in range(len(requests)))]
        for kept in fewer if len(requests) > 1 else [()]:
            left = ((kept, *how),) if kept else ()
            yield (
                program,
                dataclasses.replace(schedule, manual=(*manual[:i], *left, *manual[i + 1 :])),
            )
    if schedule.search is not None:
        yield program, dataclasses.replace(schedule, search=None)
    if schedule.local is not None:
        yield program, dataclasses.replace(schedule, local=None)
    read = {v for step in program.steps for v in step.inputs} | set(results)
    for spare in program.pool.arguments:
        if spare not in read:
            kept = [v for v in program.pool.arguments if v is not spare]
            yield _changed(program, arguments=kept), schedule


def _changed(program: Program, results=None, gradient=None, arguments=None) -> Program:
    results = program.results if results is None else results
    pool = Pool(program.pool.rng, program.pool.arguments if arguments is None else arguments)
    pool.steps = needed(program.pool.steps, results)
    return Program(pool, results, program.gradient if gradient is None else gradient, program.seed)


def _cut(program: Program, step: Step) -> Program:
    """The same with the results of a step as arguments."""
    made = _changed(program, arguments=[*program.pool.arguments, *step.outputs])
    made.pool.steps.remove(step)
    return made


def _inner(steps: list[Step]) -> Iterator[Step]:
    for step in steps:
        for inner in step.inner:
            yield from inner.steps
            yield from _inner(inner.steps)
