"""Decisions about groups of operation classes, by how these run; each is made once.

What is decided for a group depends on the forms of a few operation classes alone. So from one
lowering to the next, only groups are looked at of which a form has changed, and where these forms
have been together before, it is known what was decided then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from partita.tiling import OpForm

T = TypeVar("T")


def getter(indices: Sequence[int]) -> Callable[[Sequence[OpForm]], object]:
    """Picks these items of a list, as quickly as Python can."""
    return itemgetter(*indices) if indices else lambda _: None


class Decisions(Generic[T]):
    """What is decided for each of several groups."""

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        decide: Callable[[int, Sequence[OpForm]], T],
    ) -> None:
        """Takes the groups.

        Args:
          groups: the operation classes whose forms matter, by group.
          decide: what to decide, given the number of a group and the forms of all classes.
        """
        self._decide = decide
        self._pick = [getter(ops) for ops in groups]
        self._known: list[dict[object, T]] = [{} for _ in groups]
        self._readers: dict[int, list[int]] = {}
        for number, ops in enumerate(groups):
            for op in ops:
                self._readers.setdefault(op, []).append(number)

    def __len__(self) -> int:
        return len(self._known)

    def touched(self, ops: Iterable[int]) -> set[int]:
        """The groups for which the forms of any of these operation classes matter."""
        readers = self._readers
        return {number for op in ops if op in readers for number in readers[op]}

    def of(self, number: int, forms: Sequence[OpForm]) -> T:
        """What is decided for a group, given the forms of all operation classes."""
        key = self._pick[number](forms)
        found = self._known[number].get(key)
        if found is None:
            found = self._known[number][key] = self._decide(number, forms)
        return found


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
