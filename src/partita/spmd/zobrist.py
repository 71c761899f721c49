"""Hashes of what a lowering decision depends on, updated from one search state to the next.

A search lowers tilings that differ little. The plan of a value, or the decision about a group,
depends on the forms of a few operation classes. Nearly always these forms have occurred together
before. So each form has a random key of 64 bits, and a decision is looked up by the sum of the keys
of its inputs (Zobrist hashing, 1970). The sums are computed for all values at once. If the forms of
some classes change, only the differences are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

import numpy as np

from partita.sparse import Rows

T = TypeVar("T")


class ZobristKeys:
    """Random keys of numbered things, always the same for the same number."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._all = self._more(256)

    def of(self, numbers: np.ndarray, count: int) -> np.ndarray:
        """Returns the keys of some of the first `count` things."""
        found: np.ndarray = self.first(count)[numbers]
        return found

    def first(self, count: int) -> np.ndarray:
        """Returns the keys of at least the first `count` things."""
        if count > len(self._all):
            self._all = np.concatenate([self._all, self._more(2 * count)])
        return self._all

    def _more(self, count: int) -> np.ndarray:
        return self._random.integers(0, 2**64, count, dtype=np.uint64)


class ZobristHashes:
    """Hashes of several things, each over the forms of the operation classes it depends on."""

    def __init__(self, around: Sequence[Sequence[int]], count: int, seed: int) -> None:
        """Takes the operation classes on which each of the things depends, of so many classes."""
        filled = [list(ops) or [0] for ops in around]  # one for those without: sums need something
        self._own = ZobristKeys(seed).of(np.arange(len(filled)), len(filled))
        self._ops = np.array([op for ops in filled for op in ops], dtype=np.int64)
        self._starts = np.cumsum([0, *map(len, filled)])[:-1]
        owners = np.repeat(np.arange(len(filled)), list(map(len, filled)))
        by_op = self._ops.argsort(kind="stable")
        ends = self._ops[by_op].searchsorted(np.arange(count), side="right")
        ones = np.ones(len(owners), dtype=np.uint64)
        self._things = Rows([0, *ends.tolist()], owners[by_op], ones)
        """The things that depend on every operation class."""

    def of(self, marks: np.ndarray) -> np.ndarray:
        """Returns a 64-bit hash for each thing, given the keys of the forms of all classes."""
        if not len(self._own) or not len(marks):
            return self._own
        found: np.ndarray = np.add.reduceat(marks[self._ops], self._starts)
        found += self._own
        return found

    def after(
        self, before: np.ndarray, marks: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        """Returns the hashes after some operation classes have got other forms.

        Args:
          before: the hashes before that.
          marks: the keys of all forms.
          old: the numbers of the forms of all classes before.
          new: those now.
        """
        found = before.copy()
        self._things.add_differences(found, marks, old, new)
        return found


class View(Sequence[T]):
    """A sequence of numbered things, by their numbers."""

    def __init__(self, things: Sequence[T], numbers: np.ndarray) -> None:
        self._things, self.numbers = things, numbers

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._things[number] for number in self.numbers[index].tolist()]
        return self._things[int(self.numbers[index])]

    def __iter__(self) -> Iterator[T]:
        return map(self._things.__getitem__, self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)
