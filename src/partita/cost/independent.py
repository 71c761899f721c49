"""Independent work: what the body of a loop computes that a collective can run beside.

That is what is neither needed for what moves nor needs it. A gather of a weight runs beside all
that comes before the weight's use, so that one which the body begins with has nothing to run
beside. A sum runs beside what does not go on with it, such as the gradients of weights. What is
carried to the next iteration is needed at the end of this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from partita.analysis import ClassGraph
from partita.program import Program


class IndependentWork:
    """The shares of operation classes that values of one loop body can be moved beside."""

    def __init__(self, graph: ClassGraph, body: int, classes: Sequence[int]) -> None:
        """Of the operations in `body`, loops inside of it included, and their `classes`."""
        self._graph = graph
        self._program = graph.program
        self._operations = [
            op.index
            for op in graph.program.operations
            if op.region and body in graph.program.around(op.region)
        ]
        self._columns = {c: column for column, c in enumerate(classes)}
        self._count = 1
        """Of rows."""
        self._shares = np.ones((64, len(classes)))
        """By row; those behind the last one are of no account."""
        self._rows: dict[tuple[int, tuple[int, ...]], int] = {}

    @property
    def all(self) -> int:
        """The number of the row of what can be moved beside all work of the body."""
        return 0

    def row(self, value: int, places: tuple[int, ...]) -> int:
        """The number of the row that is for moving a value, as it is made, for some of
        its uses; without any, for summing it, whatever uses it."""
        key = value, places
        if key not in self._rows:
            if self._count == len(self._shares):
                self._shares = np.pad(self._shares, ((0, self._count), (0, 0)))
            self._shares[self._count] = self._share(value, places)
            self._rows[key] = self._count
            self._count += 1
        return self._rows[key]

    def seconds(self, rows: np.ndarray, of_classes: np.ndarray) -> np.ndarray:
        """Seconds of work that is independent of moves, given their rows and what each class of
        operations takes, all members together."""
        found: np.ndarray = (self._shares[rows] * of_classes).sum(axis=1)
        return found

    def _share(self, value: int, places: tuple[int, ...]) -> np.ndarray:
        uses = self._graph.analysis.uses[value]
        reading = [uses[place] for place in places] if places else uses
        producer = self._program.values[value].producer
        before = 0 if producer is None else self._bit(producer) | self._needed.get(producer, 0)
        after = sum({self._bit(op) for op, _ in reading})
        free = (
            self._graph.op_class[op]
            for op, needs in self._needed.items()
            if not (needs | self._bit(op)) & after and not self._bit(op) & before
        )
        shares = np.zeros(len(self._columns))
        for number, count in Counter(free).items():
            if number in self._columns:
                members = len(self._graph.ops[number].members)
                shares[self._columns[number]] = count / members
        return shares

    def _bit(self, op: int) -> int:
        """An operation of the body as a set of operations; of others, the empty one."""
        return 1 << self._places[op] if op in self._places else 0

    @cached_property
    def _places(self) -> dict[int, int]:
        return {op: place for place, op in enumerate(self._operations)}

    @cached_property
    def _needed(self) -> dict[int, int]:
        """For every operation of the body, the set of all that it needs of the body."""
        found: dict[int, int] = {}
        for index in self._operations:
            op = self._program.operations[index]
            needs = 0
            for number, v in enumerate(op.operands):
                if self._program.read_at(index, number) == index:
                    needs |= self._made_by(v, found)
            found[index] = needs
        return found

    def _made_by(self, value: int, known: dict[int, int]) -> int:
        """The operations of the body that a value is made by."""
        v = self._program.values[value]
        if v.producer is None or v.producer not in self._places:
            return 0
        makes = self._bit(v.producer) | known.get(v.producer, 0)
        end = self._program.ends.get(v.producer) if v.position == 2 else None
        if end is not None:  # what a loop inside ends with needs all of that loop
            for op in self._inside(v.producer, end):
                makes |= self._bit(op) | known.get(op, 0)
        return makes

    def _inside(self, first: int, last: int) -> Iterable[int]:
        return (op for op in range(first, last + 1) if op in self._places)


def loop_body(program: Program, region: int) -> int:
    """The innermost body of a loop around a region, or it; 0 if there is none."""
    while region and not program.regions[region].repeats:
        region = program.regions[region].parent
    return region
