"""Timeline of a step: start and end of everything in it, as it is priced.

An interval is as long as the cost model says of that instruction, and all together last as long as
the estimate says. Compute and each link work at the same time, and nothing goes on while compute
waits for exposed collectives. Lengths come from the estimate. The place of a hidden collective on
its link is not priced; it is drawn in program order, gathers as late as possible and sums as early.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from partita.cost.estimate import Estimate
from partita.cost.timeline.instruction_costs import InstructionCosts, Seconds
from partita.escape import printed
from partita.spmd import SpmdProgram
from partita.spmd.instructions import Case, Hold, Instruction, Run, While

MOST_INTERVALS = 20_000
"""Approximate limit of intervals; iterations of loops beyond it are drawn as one."""

ITERATIONS = 64
"""Default number of loop iterations that are drawn one by one."""

Kind = Literal["compute", "wait", "exposed", "hidden"]
"""Compute; compute that waits for a collective; a collective that it waits for, on its link; and a
collective under other work."""

COMPUTE = 0
"""Lane of compute. Those of links come after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Something that goes on for a while. Times in seconds from the start of the step."""

    lane: int
    """Its place in `Timeline.lanes`."""
    kind: Kind
    start: float
    end: float
    busy: float
    """Seconds that it takes by itself. It lasts longer if compute waits for others meanwhile, and
    then nothing else goes on."""
    name: str
    """The operation as the user calls it, or what is moved."""
    source: str
    """The user's line, `file:line`; empty where there is none."""
    op: int | None
    """The number of the operation in the program."""
    collective: int | None
    """The number of the collective in `Plan.collectives`."""
    times: int
    """Number of executions that it stands for."""


@dataclasses.dataclass(frozen=True, repr=False)
class Timeline:
    """One step of a plan over time, as it is priced."""

    lanes: tuple[str, ...]
    """Names of the lanes: compute, then the links by their networks, then the link to the host if
    it is used."""
    intervals: tuple[Interval, ...]
    """Lane after lane, each in order."""
    step_time: float
    """End of the last interval: `estimate.step_time`."""
    iterations: int
    """Number of loop iterations drawn one by one; the rest of each loop is drawn as one."""

    def busy(self, lane: int, *kinds: Kind) -> float:
        """Returns the seconds of all intervals of these kinds in a lane."""
        return sum(i.busy for i in self.intervals if i.lane == lane and i.kind in kinds)

    @printed
    def __repr__(self) -> str:
        return f"<Timeline: {len(self.intervals)} intervals in {', '.join(self.lanes)}>"


def timeline(
    spmd: SpmdProgram,
    costs: InstructionCosts,
    estimate: Estimate,
    iterations: int = ITERATIONS,
    most: int = MOST_INTERVALS,
) -> Timeline:
    """Computes the timeline of one step of a program.

    Args:
      spmd: the program.
      costs: of its instructions.
      estimate: of the program, which all intervals together add up to.
      iterations: number of loop iterations that are drawn one by one.
      most: approximate limit of intervals; fewer iterations are drawn to keep it.
    """
    least = _size(spmd.instructions, 1)
    while iterations > 1 and _size(spmd.instructions, iterations) > max(most, least):
        iterations //= 2
    walk = _Walk(costs, iterations)
    walk.section(spmd.instructions, 1, 1)
    host = len(estimate.link_times) > len(costs.links)
    return Timeline(
        ("compute", *costs.links, *(["host"] if host else [])),
        tuple(sorted(walk.laid_out(estimate), key=lambda i: (i.lane, i.start, -i.end))),
        estimate.step_time,
        iterations,
    )


def _size(instructions: Sequence[Instruction], iterations: int) -> int:
    """Returns the number of instructions that are drawn."""
    found = 0
    for item in instructions:
        if isinstance(item, While):
            drawn = min(item.loop.trips or 1, iterations + 1)
            found += drawn * _size(item.body.instructions, iterations)
        elif isinstance(item, Case):
            found += sum(_size(each.instructions, iterations) for each in item.sections)
        else:
            found += 1
    return found


@dataclasses.dataclass(slots=True)
class _Wait:
    """Wait of compute for a collective, or for its part on one link."""

    at: float
    """Seconds of compute before the wait."""
    link: int
    seconds: float
    what: Seconds
    times: int


@dataclasses.dataclass(slots=True)
class _Beside:
    """Part of a collective on one link that overlaps with compute."""

    at: float
    """Seconds of compute after which it is needed; for a sum, after which it may start."""
    seconds: float
    what: Seconds
    times: int
    start: float = 0.0


class _Walk:
    """Goes through the instructions as a device does."""

    def __init__(self, costs: InstructionCosts, iterations: int) -> None:
        self.costs = costs
        self.iterations = iterations
        self.now = 0.0
        """Seconds of compute so far."""
        self.work: list[tuple[float, float, Seconds, int]] = []
        """Computed intervals: start and end in seconds of compute, the cost, and the executions."""
        self.waits: list[_Wait] = []
        self.beside: dict[int, list[_Beside]] = {}
        """Overlapping parts of collectives by link."""

    def section(self, instructions: Sequence[Instruction], times: int, drawn: int) -> None:
        """Goes through a section.

        Args:
          instructions: of the section.
          times: how often it runs per step.
          drawn: of how many executions at once this is.
        """
        for item in instructions:
            if isinstance(item, While):
                self._loop(item, times, drawn)
            elif isinstance(item, Case):
                for each in item.sections:
                    self.section(each.instructions, times, drawn)
                self._take(item.branch.joins, times, drawn)
            elif isinstance(item, Hold):
                self._take(item.barrier.parts, times, drawn)
            elif isinstance(item, Run):
                self._take([item.op], times, drawn)
            else:
                self._add(self.costs.moved(item), times, drawn)

    def _loop(self, item: While, times: int, drawn: int) -> None:
        trips = max(item.loop.trips or 1, 1)
        self._take([c for c in item.loop.carries if c is not None], times, drawn)
        single = trips if trips <= self.iterations + 1 else self.iterations
        for at_once in [*[1] * single, *([trips - single] if trips > single else [])]:
            for each in (item.condition, item.body):
                self.section(each.instructions, times * trips, drawn * at_once)

    def _take(self, ops: Sequence[int], times: int, drawn: int) -> None:
        for op in ops:
            for part in self.costs.ran(op):
                self._add(part, times, drawn)

    def _add(self, what: Seconds, times: int, drawn: int) -> None:
        """Adds something that runs `what.times` a step, in a section that runs `times`."""
        share = drawn * what.times / times
        count = max(round(share), 1)
        if what.compute:
            end = self.now + share * what.compute
            self.work.append((self.now, end, what, count))
            self.now = end
        for link, seconds in what.exposed.items():
            if seconds > 0:
                self.waits.append(_Wait(self.now, link, share * seconds, what, count))
        for link, seconds in what.hidden.items():
            if seconds > 0:
                found = _Beside(self.now, share * seconds, what, count)
                self.beside.setdefault(link, []).append(found)

    def laid_out(self, estimate: Estimate) -> Iterator[Interval]:
        """Yields everything with its place in time."""
        waited = [0.0, *itertools.accumulate(wait.seconds for wait in self.waits)]
        places = [wait.at for wait in self.waits]

        def after(at: float) -> float:
            """Returns when something starts, after all waits until then."""
            return at + waited[bisect.bisect_right(places, at)]

        def before(at: float) -> float:
            """Returns when something ends, before the waits then."""
            return at + waited[bisect.bisect_left(places, at)]

        for start, end, what, times in self.work:
            yield _interval(COMPUTE, "compute", after(start), before(end), end - start, what, times)
        lanes: tuple[tuple[Kind, int], ...] = (("wait", 0), ("exposed", 1))
        for kind, on_link in lanes:
            for wait, so_far in zip(self.waits, waited, strict=False):
                lane, start = on_link * (1 + wait.link), wait.at + so_far
                end, busy = start + wait.seconds, wait.seconds
                yield _interval(lane, kind, start, end, busy, wait.what, wait.times)
        last = max(estimate.compute_time, *estimate.link_times)
        for link, items in self.beside.items():
            _scale(items, estimate.link_times[link])
            for item in placed([each for each in items if each.seconds], last):
                start, end = item.start, item.start + item.seconds
                shown = after(start), max(before(end), after(start))
                yield _interval(1 + link, "hidden", *shown, item.seconds, item.what, item.times)


def _scale(items: Sequence[_Beside], total: float) -> None:
    """Scales all items of a link to take as long as the estimate says.

    They do already, unless both combining and loops reduce the hidden time.
    """
    found = sum(item.seconds for item in items)
    for item in items if found else ():
        item.seconds *= total / found


def placed(items: Sequence[_Beside], last: float) -> list[_Beside]:
    """Places the items of one link one after the other. Gathers end when they are needed, sums
    start when they can, as far as there is room.

    Args:
      items: the items of the link.
      last: the end of the step, in seconds without waits.
    """
    ordered = sorted(items, key=lambda i: i.at if i.what.sums else max(i.at - i.seconds, 0.0))
    limit = last
    for item in reversed(ordered):
        due = limit if item.what.sums else min(limit, item.at)
        limit = item.start = due - item.seconds
    free = 0.0
    for item in ordered:
        wanted = min(item.at, item.start) if item.what.sums else item.start
        item.start = max(wanted, free)
        free = item.start + item.seconds
    return ordered


def _interval(
    lane: int, kind: Kind, start: float, end: float, busy: float, what: Seconds, times: int
) -> Interval:
    return Interval(
        lane, kind, start, end, busy, what.name, what.source, what.op, what.collective, times
    )
