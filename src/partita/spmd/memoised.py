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
    """What is decided for each of several groups."""

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
          decide: what to decide, given the number of a group and the forms of all classes.
          count: how many operation classes there are.
          seed: of the marks that tell situations apart.
        """
        self._decide = decide
        self._known: dict[int, T] = {}
        self.situations = ZobristHashes(groups, count, seed)
        """In which each group is."""
        self._decides = np.array([len(ops) > 0 for ops in groups], dtype=bool)
        """Whether there is anything to decide by, for each group."""

    def __len__(self) -> int:
        return len(self._decides)

    def of(
        self, before: np.ndarray, now: np.ndarray, forms: Sequence[OpForm]
    ) -> Iterator[tuple[int, T]]:
        """What is decided for the groups that are in another situation than before, by number.

        Args:
          before: the situations of all groups before.
          now: those now.
          forms: how all operation classes run.
        """
        changed = np.flatnonzero((before != now) & self._decides)
        for number, key in zip(changed.tolist(), now[changed].tolist(), strict=True):
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._decide(number, forms)
            yield number, found


def connected(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The connected parts of a graph, given its edges; each in order."""
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
