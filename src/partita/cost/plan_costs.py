"""Costs of the plans of value classes: each plan once, numbered, in a table.

A lowering has one such plan for each of its value classes. So its `Cost` is a sum over rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from partita.analysis import Between
from partita.cost.estimate import StepTime
from partita.cost.memory.model import Copies
from partita.cost.memory.regather import Again
from partita.cost.network.combining import Part
from partita.sparse import Rows

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """Move in the body of a loop that can overlap with other work of the iteration."""

    rows: np.ndarray
    """Row number of every member's independent work, see `partita.cost.schedule.independent`."""
    seconds: np.ndarray
    """Seconds of each member, `[members, links]`."""
    together: tuple[object, ...]
    """Key shared by all gathers that a compiler combines; empty for one that stays separate."""
    size: int
    """Bytes of the largest result of one move's steps."""
    body: int
    """Region of the body."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlanCost:
    """Cost of the plan of a value class, for all members together."""

    kept: float
    """Bytes of one member's shard as it is stored."""
    moves: bool
    """True if there is any cost besides `kept`."""
    compute: float
    """Seconds of writing and reading moved values, beyond what kernels do anyway."""
    exposed: float
    """Seconds of collectives that compute waits for."""
    hidden: tuple[float, ...]
    """Seconds of collectives that overlap with other work, on each link."""
    copies: tuple[Copies, ...]
    """Buffers besides the kept ones."""
    again: tuple[Again, ...]
    """Ways to gather it again, each with its cost."""
    parts: tuple[Part, ...]
    """Collectives that may be combined with those of others."""
    inside: tuple[Inside, ...] = ()
    """Moves in the body of a loop that overlap with other work."""

    def keeping(self, kept: float) -> PlanCost:
        """Returns the same cost with other bytes kept."""
        return dataclasses.replace(self, kept=kept)


class PlanTable:
    """The costs of plans by number; number 0 costs nothing."""

    def __init__(self, links: int) -> None:
        self.costs: list[PlanCost] = []
        self.buffers = Rows([0, 0], np.zeros(0), np.zeros(0))
        """Changes of memory by copies: bytes at positions. Row 0 changes nothing."""
        self.ways: dict[int, tuple[Again, ...]] = {}
        """Ways to gather again, by number, if there are any; the first one keeps the copies."""
        self.kept = np.zeros(0)
        """Bytes that are kept, by number."""
        self.moved = np.zeros((0, 2 + links))
        """Seconds of compute, exposed seconds, and hidden seconds on each link, by number."""
        self.copies = np.zeros(0, dtype=np.int64)
        """Row of `buffers` with the copies, by number."""
        self.moves, self.again, self.combined, self.inside = np.zeros((4, 0), dtype=bool)
        """Flags by number: has moves, ways to gather again, parts, moves inside loops."""
        self.add(PlanCost(0.0, False, 0.0, 0.0, (0.0,) * links, (), (), ()))

    def add(self, cost: PlanCost, row: int = 0) -> int:
        """Adds a cost, given the row of `buffers` of its copies, and returns its number."""
        number = len(self.costs)
        self.costs.append(cost)
        if cost.again:
            kept = Again(Between.NONE, 0.0, (0.0,) * len(cost.hidden), cost.copies, row)
            self.ways[number] = (kept, *cost.again)
        if number >= len(self.kept):
            self._grow(max(64, 2 * number))
        self.kept[number] = cost.kept
        self.moved[number] = cost.compute, cost.exposed, *cost.hidden
        self.moves[number] = cost.moves
        self.copies[number] = row
        self.again[number] = bool(cost.again)
        self.combined[number] = bool(cost.parts)
        self.inside[number] = bool(cost.inside)
        return number

    def _grow(self, size: int) -> None:
        more = size - len(self.kept)
        self.kept = np.pad(self.kept, (0, more))
        self.moved = np.pad(self.moved, ((0, more), (0, 0)))
        self.copies = np.pad(self.copies, (0, more))
        self.moves, self.again, self.combined, self.inside = (
            np.pad(each, (0, more)) for each in (self.moves, self.again, self.combined, self.inside)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Cost:
    """Cost of a lowering, with all that is needed to derive the next one from it.

    Gathered copies are kept if that fits, or gathered again as has been decided; otherwise some
    more are gathered again, see `partita.cost.memory.regather`.
    """

    ops: np.ndarray
    """Seconds of every operation class."""
    numbers: np.ndarray
    """Number, in `table`, of every value class's plan."""
    changes: np.ndarray
    """Difference array of live bytes by position, without arguments, if copies are kept."""
    time: StepTime
    peak: float
    regathered: Mapping[int, Between]
    """Value classes that are gathered again, and between which uses."""
    table: PlanTable
    moving: np.ndarray
    """As `numbers`, but the plans that gather in loops for the classes that do."""

    def without_parts(self) -> Cost:
        """Returns the cost without its parts, to save memory; no other derives from it then."""
        none = np.zeros(0)
        return dataclasses.replace(self, ops=none, numbers=none, changes=none, moving=none)

    @property
    def plans(self) -> list[PlanCost]:
        """Cost of every value class's plan."""
        return [self.table.costs[number] for number in self.numbers.tolist()]

    @property
    def parts(self) -> list[Part]:
        """Collectives that may be combined with others."""
        combined = self.moving[self.table.combined[self.moving]].tolist()
        return [part for number in combined for part in self.table.costs[number].parts]

    @property
    def live(self) -> np.ndarray:
        """Bytes alive at every position, without arguments, if copies are kept."""
        found: np.ndarray = self.changes.cumsum()
        return found

    @property
    def kept(self) -> np.ndarray:
        """Bytes of every value class's shard in its stored layout."""
        found: np.ndarray = self.table.kept[self.numbers]
        return found

    @property
    def captured(self) -> list[int]:
        """Value classes that are gathered in the iterations of loops around their uses."""
        return [index for index, between in self.regathered.items() if between.in_loops]


class Column:
    """Growing array with a figure of each of some numbered things."""

    def __init__(self) -> None:
        self.all = np.zeros(256)
        """Figures by number; those after the last filled one are unused."""
        self._count = 0

    def fill(self, things: Sequence[T], figure: Callable[[T], float]) -> None:
        """Computes the figures of new things."""
        if len(things) == self._count:
            return
        if len(things) > len(self.all):
            self.all = np.pad(self.all, (0, len(things)))
        more = [figure(thing) for thing in things[self._count :]]
        self.all[self._count : len(things)] = more
        self._count = len(things)


def total(rows: np.ndarray) -> np.ndarray:
    """Sums rows one after the other: the same bits, whatever their number."""
    found: np.ndarray = rows.cumsum(axis=0)[-1] if len(rows) else np.zeros(rows.shape[1:])
    return found
