"""Collectives in the bodies of loops: they run beside the work of one iteration, and no more.

What every iteration gathers or reduces cannot begin before the iteration, nor end after it. So in
a loop that computes little, such as that of a decoder over its layers for each token, collectives
are waited for, however long the step as a whole computes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.analysis import ClassGraph
from partita.cost.plan_costs import PlanTable, total
from partita.program import Program


class Loops:
    """The bodies of a program's loops: what is computed there, and what moves there."""

    def __init__(self, graph: ClassGraph, share: float = 1.0) -> None:
        """Of what an iteration computes, the compiler has this share beside its collectives."""
        program = graph.program
        self._share = share
        of_value = [_body(program, program.home(v.members[0])) for v in graph.values]
        """Of every value class, the innermost loop body that its members are made in; 0 if none."""
        inside: dict[int, list[int]] = {body: [] for body in set(of_value) - {0}}
        for op in graph.ops:
            body = _body(program, program.operations[op.op.index].region)
            while body:
                if body in inside:
                    inside[body].append(op.index)
                body = _body(program, program.regions[body].parent)
        self._bodies = {
            body: (np.array(ops, dtype=np.int64), np.flatnonzero(np.array(of_value) == body))
            for body, ops in inside.items()
        }
        """The operation classes in a body, those of loops inside of it included, and the value
        classes that are made in it."""

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
        moving = list(self._moving(numbers, table))
        for _, body, moves in sorted(moving, key=lambda each: each[0]):
            ops, _ = self._bodies[body]
            links = total(table.moved[moves, 2:]).tolist()
            longest = max(links)
            computing = self._share * total(seconds[ops]).item()
            if longest > computing:
                share = 1 - computing / longest
                yield body, share, [share * link for link in links]

    def made_in(self, body: int) -> list[int]:
        """The value classes that are made in a body."""
        found: list[int] = self._bodies[body][1].tolist()
        return found

    def _moving(
        self, numbers: np.ndarray, table: PlanTable
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """The first value class that moves in a body, the body, and the numbers of all that do."""
        for body, (_, values) in self._bodies.items():
            made = numbers[values]
            moves = table.moves[made]
            if moves.any():
                yield int(values[moves.argmax()]), body, made[moves]


def _body(program: Program, region: int) -> int:
    """The innermost body of a loop around a region, or it; 0 if there is none."""
    while region and not program.regions[region].repeats:
        region = program.regions[region].parent
    return region
