"""Independent work: the part of a loop body that a collective can overlap with.

Work is independent if the collective neither needs it nor is needed by it. A gather of a weight
overlaps with all that comes before the weight's use; at the start of the body it has nothing to
overlap with. A sum overlaps with what does not read it, such as the gradients of weights. Values
carried to the next iteration are needed at the end of this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from partita.analysis import ClassGraph
from partita.program import Program


class IndependentWork:
    """Shares of operation classes with which moves of a loop body's values can overlap."""

    def __init__(self, graph: ClassGraph, body: int, classes: Sequence[int]) -> None:
        """Takes the operations in `body`, loops inside it included, and their `classes`."""
        self._graph = graph
        self._program = graph.program
        self._operations = [
            op.index
            for op in graph.program.operations
            if op.region and body in graph.program.around(op.region)
        ]
        self._columns = {c: column for column, c in enumerate(classes)}
        self._count = 1
        """Number of rows in use."""
        self._shares = np.ones((64, len(classes)))
        """Shares by row; rows from `_count` on are unused."""
        self._rows: dict[tuple[int, tuple[int, ...]], int] = {}

    @property
    def all(self) -> int:
        """Row number of a value that can be moved during all work of the body."""
        return 0

    def row(self, value: int, places: tuple[int, ...]) -> int:
        """Returns the row number for moving a value, as it is made, to some of its uses; without
        any, for summing it before all of them."""
        key = value, places
        if key not in self._rows:
            if self._count == len(self._shares):
                self._shares = np.pad(self._shares, ((0, self._count), (0, 0)))
            self._shares[self._count] = self._share(value, places)
            self._rows[key] = self._count
            self._count += 1
        return self._rows[key]

    def seconds(self, rows: np.ndarray, of_classes: np.ndarray) -> np.ndarray:
        """Returns the seconds of work that is independent of each row's move, given the seconds of
        all members of each operation class."""
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
        """Returns an operation of the body as a set with one bit; 0 for others."""
        return 1 << self._places[op] if op in self._places else 0

    @cached_property
    def _places(self) -> dict[int, int]:
        return {op: place for place, op in enumerate(self._operations)}

    @cached_property
    def _needed(self) -> dict[int, int]:
        """Set of the body's operations that each of them needs."""
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
        """Returns the set of the body's operations that make a value."""
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
    """Returns the innermost loop body that contains a region, or is it; 0 if there is none."""
    while region and not program.regions[region].repeats:
        region = program.regions[region].parent
    return region
