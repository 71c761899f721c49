"""Conflicts: operations and values that hold one color twice, and the roles that compete there.

Restrict a color's graph to its conflicted operations and values: the connected components of what
is left are *roles* (query positions, key positions). Roles that meet in one tensor or operation
form a *conflict set* (TOAST's compatibility set), which is resolved as one.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from partita.analysis.names import Names, components


@dataclasses.dataclass(frozen=True)
class Conflicts:
    """Roles and conflict sets of a program."""

    role: np.ndarray
    """Role of every node of the name graph, -1 outside conflicts."""
    sets: tuple[tuple[int, ...], ...]
    """The conflict sets, each the roles that meet in it."""
    color: tuple[int, ...]
    """The color of each set."""


def analyse_conflicts(names: Names) -> Conflicts:
    """Finds every conflict of the name graph."""
    twice = _held_twice(names)
    edges = names.edges[twice[names.edges].all(axis=1)]
    count, role = components(names.nodes, edges, twice)
    meet = [
        (int(a), int(b))
        for nodes in _owners(names, twice)
        for a, b in _same_color(names, role, nodes)
    ]
    pairs = np.array(meet, dtype=np.int64).reshape(-1, 2)
    number, belongs = components(count, pairs, np.ones(count, bool))
    sets: list[list[int]] = [[] for _ in range(number)]
    for each in range(count):
        sets[belongs[each]].append(each)
    _, first = np.unique(role[role >= 0], return_index=True)
    colors = names.color[role >= 0][first].tolist()
    color = tuple(colors[roles[0]] for roles in sets)
    return Conflicts(role, tuple(tuple(roles) for roles in sets), color)


def _bases(names: Names) -> np.ndarray:
    return np.array(names.value_base[:-1] + names.factor_base, dtype=np.int64)


def _held_twice(names: Names) -> np.ndarray:
    """Marks the nodes whose operation or value has another node of the same color."""
    owner = np.repeat(np.arange(len(_bases(names)) - 1), np.diff(_bases(names)))
    key = owner * (names.colors + 1) + names.color
    colored = names.color >= 0
    _, inverse, counts = np.unique(key[colored], return_inverse=True, return_counts=True)
    twice = np.zeros(names.nodes, bool)
    twice[colored] = counts[inverse] > 1
    return twice


def _owners(names: Names, twice: np.ndarray) -> list[list[int]]:
    """Returns the conflicted nodes of each operation and value that has some."""
    bases = _bases(names)
    owners: dict[int, list[int]] = {}
    for node in np.flatnonzero(twice).tolist():
        owners.setdefault(int(np.searchsorted(bases, node, side="right")), []).append(node)
    return list(owners.values())


def _same_color(names: Names, role: np.ndarray, nodes: list[int]) -> list[tuple[int, int]]:
    first: dict[int, int] = {}
    return [(role[first.setdefault(int(names.color[node]), node)], role[node]) for node in nodes]
