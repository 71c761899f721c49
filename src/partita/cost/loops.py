"""Collectives in the bodies of loops: they run beside the work of one iteration, and no more.

What every iteration gathers or reduces cannot begin before the iteration, nor end after it. Of the
iteration, it runs beside what does not depend on it (`partita.cost.independent`): what is gathered
for the first product of the body is waited for, and so is the sum that the body ends with, however
long the step as a whole computes. What follows from that was looked up in compiled programs
(`tests/verify/test_loop_schedules.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from partita.analysis import ClassGraph
from partita.cost.hardware import Hardware
from partita.cost.independent import IndependentWork, loop_body
from partita.cost.plan_costs import Inside, PlanTable
from partita.cost.timing import Timing
from partita.spmd.steps import Step

REMEMBERED = 64
"""How many ways of moving in bodies are remembered."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Moved:
    """All that moves in the body of a loop beside other work."""

    moves: list[Inside]
    rows: np.ndarray
    """Those of all moves, one after the other."""
    times: np.ndarray
    """The seconds of all, on each link."""
    links: np.ndarray
    """The sum of these."""

    @staticmethod
    def of(moves: list[Inside]) -> _Moved:
        """Some moves together."""
        times = np.concatenate([move.seconds for move in moves])
        rows = np.concatenate([move.rows for move in moves])
        return _Moved(moves, rows, times, times.sum(axis=0))


@dataclasses.dataclass(frozen=True)
class _Body:
    """The body of a loop."""

    work: IndependentWork
    ops: np.ndarray
    """The operation classes in it, those of loops inside of it included."""
    values: np.ndarray
    """The value classes that are made in it."""


class Loops:
    """The bodies of a program's loops: what is computed there, and what moves there."""

    def __init__(self, graph: ClassGraph, timing: Timing, hardware: Hardware) -> None:
        """Of the independent work of an iteration, a compiler has a share beside collectives."""
        self._graph = graph
        self._timing = timing
        self._share = hardware.loop_overlap.value
        self._combined = frozenset(hardware.combined)
        self._limit = hardware.combine.value
        self._late = frozenset(hardware.kernels.late_in_loops)
        self._known: dict[tuple[int, bytes], _Moved | None] = {}
        program = graph.program
        of_value = [loop_body(program, program.home(v.members[0])) for v in graph.values]
        self._of_value = of_value
        """Of every value class, the innermost loop body that its members are made in; 0 if none."""
        inside: dict[int, list[int]] = {body: [] for body in set(of_value) - {0}}
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
        """Whether a value class is made in the body of a loop."""
        return self._of_value[index] > 0

    def move(
        self, index: int, places: tuple[int, ...], steps: Sequence[Step], seconds: np.ndarray
    ) -> Inside | None:
        """A move of a value class that can run beside other work of an iteration, if it is in one.

        Args:
          index: of the value class.
          places: of the uses that it is for; none if it is of all, as it is made.
          steps: what happens to each member.
          seconds: of all members, on each link.
        """
        body = self._of_value[index]
        if not body or not seconds.any():
            return None
        work, program = self._bodies[body].work, self._graph.program
        members = [
            member
            for member in self._graph.values[index].members
            if loop_body(program, program.home(member)) == body
        ]
        kinds = {step.kind for step in steps if step.is_collective}
        rows = [
            work.all if self._is_late(member, kinds) else work.row(member, places)
            for member in members
        ]
        together: tuple[object, ...] = ()
        size = max(step.after.bytes for step in steps)
        if kinds == {"all_gather"} and kinds <= self._combined and size < self._limit:
            together = tuple(step.axes for step in steps)
        share = np.tile(seconds / len(rows), (len(rows), 1))
        return Inside(np.array(rows, dtype=np.int64), share, together, size)

    def _is_late(self, value: int, kinds: set[str]) -> bool:
        """Whether a sum is done beside the next iteration, since only what the loop stacks needs
        it."""
        if self._late.isdisjoint(kinds):
            return False
        made, uses = self._graph.program.values[value], self._timing.analysis.uses
        return self._timing.order.loop_around(made, uses) is not None

    def excess(self, seconds: np.ndarray, numbers: np.ndarray, table: PlanTable) -> list[float]:
        """What is taken for hidden on each link, and is longer than what is computed meanwhile.

        Args:
          seconds: of every operation class.
          numbers: of what happens to every value class, in a table.
          table: the table.
        """
        found: list[float] = []
        for _, _, over in self.by_body(seconds, numbers, table):
            found = list(map(sum, zip(found, over, strict=True))) if found else over
        return found

    def by_body(
        self, seconds: np.ndarray, numbers: np.ndarray, table: PlanTable
    ) -> Iterator[tuple[int, float, list[float]]]:
        """The same of every body in which anything is too long: the body, the share of what is
        taken for hidden there, and that on each link."""
        for number, body in self._bodies.items():
            made = numbers[body.values]
            moved = self._moved(number, made[table.inside[made]], table)
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

    def _moved(self, body: int, numbers: np.ndarray, table: PlanTable) -> _Moved | None:
        """All that moves in a body, given what happens there, by number; None if nothing does.

        From plan to plan, that is often the same.
        """
        key = body, numbers.tobytes()
        if key not in self._known:
            moves = [move for number in numbers.tolist() for move in table.costs[number].inside]
            if len(self._known) == REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = _Moved.of(moves) if moves else None
        return self._known[key]

    def made_in(self, body: int) -> list[int]:
        """The value classes that are made in a body."""
        found: list[int] = self._bodies[body].values.tolist()
        return found

    def _gather_together(self, moves: Sequence[Inside], work: np.ndarray) -> None:
        """Has what a compiler makes one gather of run beside what the first of them can."""
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
