"""Memoises decisions about groups of operation classes, by a hash of their inputs.

A decision about a group depends on the forms of a few operation classes alone. From one lowering to
the next, only the groups are looked at whose forms have changed; a decision for forms that have
occurred together before is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from partita.spmd.zobrist import ZobristHashes
from partita.tiling import OpForm

T = TypeVar("T")


class MemoisedByGroup(Generic[T]):
    """Memoised decisions about groups of operation classes."""

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        decide: Callable[[int, Sequence[OpForm]], T],
        count: int,
        seed: int,
    ) -> None:
        """Takes the groups.

        Args:
          groups: the operation classes whose forms matter, by group.
          decide: makes a decision, given the number of a group and the forms of all classes.
          count: the number of operation classes.
          seed: the seed of the Zobrist keys.
        """
        self._decide = decide
        self._known: dict[int, T] = {}
        self.situations = ZobristHashes(groups, count, seed)
        """Input hashes of the groups."""
        self._decides = np.array([len(ops) > 0 for ops in groups], dtype=bool)
        """True for each group that depends on the form of any operation class."""

    def __len__(self) -> int:
        return len(self._decides)

    def of(
        self, before: np.ndarray, now: np.ndarray, forms: Sequence[OpForm]
    ) -> Iterator[tuple[int, T]]:
        """Yields the number and decision of each group whose input hash has changed.

        Args:
          before: the input hashes of all groups before.
          now: the input hashes now.
          forms: the forms of all operation classes.
        """
        changed = np.flatnonzero((before != now) & self._decides)
        for number, key in zip(changed.tolist(), now[changed].tolist(), strict=True):
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._decide(number, forms)
            yield number, found


def connected(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the connected components of a graph, given its edges; each in order."""
    parent: dict[int, int] = {}

    def root(item: int) -> int:
        while parent.setdefault(item, item) != item:
            parent[item] = item = parent[parent[item]]
        return item

    for a, b in pairs:
        parent[root(a)] = root(b)
    found: dict[int, list[int]] = {}
    for item in sorted(parent):
        found.setdefault(root(item), []).append(item)
    return list(found.values())
