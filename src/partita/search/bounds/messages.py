"""Pairwise energies, sums of costs of choices and of pairs of them, and a lower bound on them.

The bound is by sequential tree-reweighted message passing (TRW-S: Kolmogorov, Convergent
tree-reweighted message passing for energy minimization, 2006). If the graph is a tree, the bound is
the minimum; else it approaches that of a linear program that lets choices be mixed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from partita.native import pass_messages


@dataclasses.dataclass(frozen=True, eq=False)
class Edge:
    """Two nodes whose choices cost something together; the first one has the lower number."""

    first: int
    second: int
    cost: np.ndarray
    """Costs by the choice of the first node, and that of the second."""


@dataclasses.dataclass(frozen=True, eq=False)
class Energy:
    """Pairwise energy: costs of choices, of which each node makes one, and of pairs of them."""

    sizes: Sequence[int]
    """Number of choices of every node."""
    ends: Sequence[tuple[int, int]]
    """The nodes of every edge."""
    alone: np.ndarray
    """The costs of all choices of all nodes, one after the other."""
    beside: np.ndarray
    """The costs of all pairs of choices of all edges, one after the other."""

    @classmethod
    def joined(cls, nodes: Sequence[np.ndarray], edges: Sequence[Edge]) -> Energy:
        """Returns the energy of nodes, given the costs of their choices, and of edges."""
        ends = [(edge.first, edge.second) for edge in edges]
        beside = joined([edge.cost for edge in edges])
        return cls([len(costs) for costs in nodes], ends, joined(nodes), beside)

    @functools.cached_property
    def nodes(self) -> list[np.ndarray]:
        """Cost of each choice, by node."""
        return np.split(self.alone, starts(self.sizes)[1:])[: len(self.sizes)]

    @functools.cached_property
    def edges(self) -> list[Edge]:
        """The edges, each with its costs."""
        shapes = [(self.sizes[first], self.sizes[second]) for first, second in self.ends]
        tables = np.split(self.beside, starts(a * b for a, b in shapes)[1:])
        return [
            Edge(first, second, table.reshape(shape))
            for (first, second), shape, table in zip(self.ends, shapes, tables, strict=False)
        ]

    def of(self, choices: Sequence[int]) -> float:
        """Returns the energy of one choice for each node."""
        alone = sum(float(costs[c]) for costs, c in zip(self.nodes, choices, strict=True))
        pairs = (float(e.cost[choices[e.first], choices[e.second]]) for e in self.edges)
        return alone + sum(pairs)


class Messages:
    """Messages between the nodes of an energy, and the lower bounds that follow from them.

    A pass returns a lower bound, whatever the messages are; each pass improves it.
    """

    def __init__(self, energy: Energy) -> None:
        sizes, ends = energy.sizes, energy.ends
        self._first = _ends(sizes)
        """Start of the choices of every node, one node after the other."""
        if any(first >= second for first, second in ends):
            raise AssertionError("edges must lead from a node to a later one")
        self._nodes_of = np.array(ends, dtype=np.int64).reshape(-1, 2)
        self._costs_at = _ends([sizes[first] * sizes[second] for first, second in ends])
        self._forward_at, self.forward = _messages([sizes[second] for _, second in ends])
        """Messages of every edge to its second node."""
        self._backward_at, self.backward = _messages([sizes[first] for first, _ in ends])
        """Messages of every edge to its first node."""
        self._after, self._before = (
            _grouped(self._nodes_of[:, side], len(sizes)) for side in (0, 1)
        )
        """Edges of every node to later ones, and to earlier ones: (starts, edges by node)."""

    def run(self, energy: Energy) -> tuple[float, list[int]]:
        """Passes messages up and down; returns the better bound, and choices near it."""
        way = self._python if pass_messages is None else self._native
        (up, _), (down, choices) = (way(energy, upward) for upward in (True, False))
        return max(up, down), choices

    def _native(self, energy: Energy, upward: bool) -> tuple[float, list[int]]:
        choices = np.full(len(energy.sizes), -1, dtype=np.int64)
        bound = pass_messages(
            upward,
            self._first,
            energy.alone,
            self._nodes_of,
            self._costs_at,
            energy.beside,
            *self._after,
            *self._before,
            self._forward_at,
            self.forward,
            self._backward_at,
            self.backward,
            choices,
        )
        return bound, choices.tolist()

    def _python(self, energy: Energy, upward: bool) -> tuple[float, list[int]]:
        """Makes a pass over all nodes; returns the bound and choices.

        For each edge, the message to the second node is at most the cost plus the part of the first
        node's belief. So the energy is at least what remains at nodes, after each has given its
        share to the edges ahead.
        """
        bound, choices, least = 0.0, [-1] * len(energy.nodes), np.minimum.reduce
        forward = np.split(self.forward, self._forward_at[1:-1])
        backward = np.split(self.backward, self._backward_at[1:-1])
        after, before = (
            [each.tolist() for each in np.split(numbers, starts[1:-1])]
            for starts, numbers in (self._after, self._before)
        )
        order = range(len(energy.nodes))
        for node in order if upward else reversed(order):
            ahead, behind = (after, before) if upward else (before, after)
            belief = energy.nodes[node].copy()
            for number in after[node]:
                belief += backward[number]
            for number in before[node]:
                belief += forward[number]
            share = 1 / max(len(ahead[node]), len(behind[node]), 1)
            if left := 1 - len(ahead[node]) * share:
                bound += left * float(least(belief))
            belief *= share
            if not upward:
                total = energy.nodes[node].copy()
                for number in after[node]:
                    edge = energy.edges[number]
                    total += edge.cost[:, choices[edge.second]]
                for number in before[node]:
                    total += forward[number]
                choices[node] = int(total.argmin())
            for number in ahead[node]:
                cost = energy.edges[number].cost
                if upward:
                    given = belief - backward[number]
                    forward[number][:] = least(given[:, None] + cost, axis=0)
                else:
                    given = belief - forward[number]
                    backward[number][:] = least(given + cost, axis=1)
        return bound, choices


def _ends(sizes: Iterable[int]) -> np.ndarray:
    """Returns the starts of consecutive blocks of these sizes, then the end of the last."""
    return np.array([0, *itertools.accumulate(sizes)], dtype=np.int64)


def _messages(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts of messages of these sizes, and zeros for all of them."""
    return (ends := _ends(sizes)), np.zeros(ends[-1])


def _grouped(nodes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups edges by node, given one node of each: returns (starts, edges by node)."""
    return _ends(np.bincount(nodes, minlength=count).tolist()), nodes.argsort(kind="stable")


def joined(costs: Sequence[np.ndarray]) -> np.ndarray:
    """Joins arrays of any shape into a flat one."""
    return np.concatenate([each.ravel() for each in costs]) if costs else np.zeros(0)


def starts(sizes: Iterable[int]) -> np.ndarray:
    """Returns the starts of consecutive blocks of these sizes."""
    return _ends(sizes)[:-1]
