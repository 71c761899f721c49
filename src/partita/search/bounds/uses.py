"""Resharding costs per use, shared between uses with equal needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from partita.search.bounds.messages import joined, starts


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """Costs of two nodes together, by the choices of both.

    `seconds` are those if all collectives are waited for, `hidden` how many of them may overlap
    with other work, `compute` those of compute.
    """

    first: int
    second: int
    seconds: np.ndarray
    hidden: np.ndarray
    compute: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Uses:
    """Reshards of a value class for its uses.

    A reshard that several uses need runs once, so each of them has a share of it. Any shares that
    sum to at most 1 give a lower bound.
    """

    value: int
    """Node of the value."""
    ops: list[int]
    """Node of every use."""
    rows: list[np.ndarray]
    """Number of the need of every choice, by use."""
    seconds: np.ndarray
    """Seconds of the reshard if it is waited for, by need and layout."""
    hidden: np.ndarray
    """Part of `seconds` that may be hidden, by need and layout."""
    shares: list[float]
    """Share of members whose reshard is hidden, by use."""
    compute: np.ndarray
    """Seconds of compute of each use with a reshard, by need and layout."""
    weights: np.ndarray
    """Initial share of each use in a reshard, by use, need and layout."""

    def moves(self) -> Iterator[tuple[int, Moves]]:
        """Yields the costs of every use with a reshard, by its number, with the initial shares."""
        for number, (op, rows) in enumerate(zip(self.ops, self.rows, strict=True)):
            weights, share = self.weights[number], self.shares[number]
            seconds = (weights * self.seconds)[rows]
            if seconds.any():
                hidden = (share * weights * self.hidden)[rows]
                yield number, Moves(op, self.value, seconds, hidden, self.compute[rows])


def shared_moves(every: Sequence[Uses]) -> Iterator[tuple[Moves, np.ndarray]]:
    """Yields costs of all uses of some values with initial shares, and the numbers of shares.

    The latter are by choices of both nodes, as `Shared` numbers them.
    """
    for uses, first in zip(every, starts(u.weights.size for u in every), strict=True):
        _, needs, layouts = uses.weights.shape
        for number, moves in uses.moves():
            rows = first + (number * needs + uses.rows[number]) * layouts
            yield moves, rows[:, None] + np.arange(layouts)


class Shared:
    """Reshards of values with several uses; shares in one array by value, use, need, layout."""

    def __init__(self, every: Sequence[Uses]) -> None:
        shapes = [uses.weights.shape for uses in every]
        self._first = starts(uses.weights.size for uses in every)
        alike = [
            (np.broadcast_to(uses.seconds, shape), np.broadcast_to(uses.hidden, shape))
            for uses, shape in zip(every, shapes, strict=True)
        ]
        self._seconds = joined([seconds for seconds, _ in alike])
        self._may = joined([hidden for _, hidden in alike])
        self._hides = joined([np.repeat(uses.shares, uses.seconds.size) for uses in every])
        self._weights = joined([uses.weights for uses in every])
        self._counts, self._needs, self._layouts = np.array(shapes, dtype=np.int64).reshape(-1, 3).T
        self._values = np.array([uses.value for uses in every], dtype=np.int64)
        self._ops = np.array([op for uses in every for op in uses.ops], dtype=np.int64)
        rows = [each for uses in every for each in uses.rows]
        self._rows, self._row = joined(rows).astype(np.int64), starts(map(len, rows))

    def hidden(self) -> np.ndarray:
        """Returns the seconds that may be hidden, by share."""
        hidden: np.ndarray = self._hides * self._weights * self._may
        return hidden

    def seconds(self, beside: float) -> np.ndarray:
        """Returns the seconds by share, with this weight of those that may be hidden."""
        seconds: np.ndarray = self._weights * self._seconds - (1 - beside) * self.hidden()
        return seconds

    def share(self, choices: np.ndarray, step: float) -> None:
        """Moves shares towards equal ones of uses with equal needs under some choices."""
        if not len(self._values):
            return
        most, layouts = self._needs.max(), choices[self._values]
        needs = self._rows[self._row + choices[self._ops]]
        # For every need of a value, all uses of the value: those that need alike, and others.
        groups = np.unique(np.repeat(np.arange(len(self._values)), self._counts) * most + needs)
        value, need = groups // most, groups % most
        counts = self._counts[value]
        begins = starts(counts)
        number = np.arange(counts.sum()) - np.repeat(begins, counts)
        use = np.repeat(starts(self._counts)[value], counts) + number
        alike = (needs[use] == np.repeat(need, counts)).astype(float)
        first = self._first[value] + need * self._layouts[value] + layouts[value]
        apart = self._needs[value] * self._layouts[value]
        where = np.repeat(first, counts) + number * np.repeat(apart, counts)
        parts = np.repeat(np.add.reduceat(alike, begins), counts)
        self._weights[where] = (1 - step) * self._weights[where] + step * alike / parts
