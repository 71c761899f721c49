"""Collectives in loop bodies: they overlap with the work of one iteration, and no more.

A collective of an iteration cannot begin before the iteration, nor end after it. It overlaps with
the part of the iteration that does not depend on it (`partita.cost.schedule.independent`).
Compute waits for a gather for the first product of the body, and for the sum that the body ends
with, however long the step as a whole computes. The consequences were looked up in compiled
programs (`tests/verify/test_loop_schedules.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from partita.analysis import Between, ClassGraph
from partita.cost.devices.hardware import Hardware
from partita.cost.kernels.timing import Timing
from partita.cost.plan_costs import Inside, PlanTable
from partita.cost.schedule.independent import IndependentWork, loop_body
from partita.program.collectives import ALL_GATHER
from partita.spmd.steps import Step

REMEMBERED = 64
"""Number of combinations of moves in bodies that are memoised."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Moved:
    """All moves in the body of a loop that overlap with other work."""

    moves: list[Inside]
    rows: np.ndarray
    """Rows of all moves, concatenated."""
    times: np.ndarray
    """Seconds of all moves, on each link."""
    links: np.ndarray
    """Sum of `times` over moves."""

    @staticmethod
    def of(moves: list[Inside]) -> _Moved:
        """Concatenates some moves."""
        times = np.concatenate([move.seconds for move in moves])
        rows = np.concatenate([move.rows for move in moves])
        return _Moved(moves, rows, times, times.sum(axis=0))


@dataclasses.dataclass(frozen=True)
class _Body:
    """The body of a loop."""

    work: IndependentWork
    ops: np.ndarray
    """Operation classes in it, those of inner loops included."""
    values: np.ndarray
    """Value classes that are made in it."""


class Loops:
    """Bodies of a program's loops: their operations, and the moves that overlap with them."""

    def __init__(self, graph: ClassGraph, timing: Timing, hardware: Hardware) -> None:
        """Finds the loop bodies; a share, `hardware.loop_overlap`, of independent work hides."""
        self._graph = graph
        self._timing = timing
        self._share = hardware.loop_overlap.value
        self._combined = frozenset(hardware.combined)
        self._limit = hardware.combine.value
        self._late = frozenset(hardware.kernels.late_in_loops)
        self._known: dict[tuple[int, tuple[int, ...]], _Moved | None] = {}
        program = graph.program
        of_value = [loop_body(program, program.home(v.members[0])) for v in graph.values]
        self._of_value = of_value
        """Innermost loop body in which the members of each value class are made; 0 if none."""
        gathering = {u.windows[Between.EACH].body for v in graph.values for u in v.uses}
        inside: dict[int, list[int]] = {body: [] for body in {*of_value, *gathering} - {0}}
        for op in graph.ops:
            body = loop_body(program, program.operations[op.op.index].region)
            while body:
                if body in inside:
                    inside[body].append(op.index)
                body = loop_body(program, program.regions[body].parent)
        self._bodies = {
            body: _Body(
                IndependentWork(graph, body, ops),
                np.array(ops, dtype=np.int64),
                np.flatnonzero(np.array(of_value) == body),
            )
            for body, ops in inside.items()
        }

    def have(self, index: int) -> bool:
        """Returns whether a value class is made in the body of a loop."""
        return self._of_value[index] > 0

    def move(
        self,
        index: int,
        places: tuple[int, ...],
        steps: Sequence[Step],
        seconds: np.ndarray,
        around: int = 0,
    ) -> Inside | None:
        """Returns a move that can overlap with other work of an iteration; None outside loops, or
        if it takes no time.

        Args:
          index: of the value class.
          places: of the uses that it is for; none if it is of all, as it is made.
          steps: steps of the reshard of each member.
          seconds: of all members, on each link.
          around: the body whose iterations it is part of; by default, the one that makes the value.
        """
        body = around or self._of_value[index]
        if not body or not seconds.any():
            return None
        work, program = self._bodies[body].work, self._graph.program
        members = [
            member
            for member in self._graph.values[index].members
            if around or loop_body(program, program.home(member)) == body
        ]
        kinds = {step.kind for step in steps if step.is_collective}
        rows = [
            work.all if self._is_late(member, kinds) else work.row(member, places)
            for member in members
        ]
        together: tuple[object, ...] = ()
        size = max(step.after.bytes for step in steps)
        if kinds == {ALL_GATHER.name} and kinds <= self._combined and size < self._limit:
            together = tuple(step.axes for step in steps)
        share = np.tile(seconds / len(rows), (len(rows), 1))
        return Inside(np.array(rows, dtype=np.int64), share, together, size, body)

    def _is_late(self, value: int, kinds: set[str]) -> bool:
        """Returns whether a sum overlaps with the next iteration, as only stacks need it."""
        if self._late.isdisjoint(kinds):
            return False
        made, uses = self._graph.program.values[value], self._timing.analysis.uses
        return self._timing.order.loop_around(made, uses) is not None

    def excess(
        self,
        seconds: np.ndarray,
        numbers: np.ndarray,
        table: PlanTable,
        captured: Sequence[int] = (),
    ) -> list[float]:
        """Returns the seconds on each link that exceed the compute which was to hide them.

        Args:
          seconds: of every operation class.
          numbers: of the plans of every value class, in a table.
          table: the table.
          captured: value classes from outside of loops that are gathered in iterations.
        """
        found: list[float] = []
        for _, _, over in self.by_body(seconds, numbers, table, captured):
            found = list(map(sum, zip(found, over, strict=True))) if found else over
        return found

    def by_body(
        self,
        seconds: np.ndarray,
        numbers: np.ndarray,
        table: PlanTable,
        captured: Sequence[int] = (),
    ) -> Iterator[tuple[int, float, list[float]]]:
        """Yields each body with an excess: the body, the excess share of its hidden time, and the
        excess on each link."""
        outside = [int(numbers[index]) for index in captured]
        for number, body in self._bodies.items():
            made = numbers[body.values]
            inside = [*made[table.inside[made]].tolist(), *outside]
            moved = self._moved(number, inside, table)
            if moved is None:
                continue
            times, links = moved.times, moved.links
            work = self._share * body.work.seconds(moved.rows, seconds[body.ops])
            if links.max() <= work.min():
                continue
            self._gather_together(moved.moves, work)
            order = work.argsort(kind="stable")
            over = (times[order].cumsum(axis=0) - work[order, None]).max(axis=0)
            link = int(over.argmax())
            if over[link] > 0:
                share = float(over[link] / links[link])
                yield number, share, (share * links).tolist()

    def _moved(self, body: int, numbers: Sequence[int], table: PlanTable) -> _Moved | None:
        """Returns all moves in a body, given the numbers of plans with some; None if there are
        none.

        Memoised, as consecutive plans often agree.
        """
        key = body, tuple(numbers)
        if key not in self._known:
            found = [move for number in numbers for move in table.costs[number].inside]
            moves = [move for move in found if move.body == body]
            if len(self._known) == REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = _Moved.of(moves) if moves else None
        return self._known[key]

    def body_of(self, index: int) -> int:
        """Returns the innermost loop body in which a value class is made; 0 if none."""
        return self._of_value[index]

    def _gather_together(self, moves: Sequence[Inside], work: np.ndarray) -> None:
        """Lets gathers that a compiler combines overlap only with the work of the first of them."""
        groups: dict[tuple[object, ...], tuple[float, float]] = {}
        own = [(work[row], row, move) for row, move in enumerate(_by_row(moves)) if move.together]
        for beside, row, move in sorted(own, key=lambda each: each[:2]):
            first, size = groups.get(move.together, (beside, 0.0))
            if size + move.size > self._limit:
                first, size = beside, 0.0
            groups[move.together] = first, size + move.size
            work[row] = first


def _by_row(moves: Sequence[Inside]) -> Iterator[Inside]:
    for move in moves:
        for _ in move.rows:
            yield move
