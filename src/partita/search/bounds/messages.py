"""Pairwise energies: sums of costs of single choices and of pairs of them, and a lower bound on the
least of them.

The bound is by sequential tree-reweighted message passing (TRW-S: Kolmogorov, Convergent
tree-reweighted message passing for energy minimization, 2006). Where the graph is a tree it is the
minimum; else it nears that of a linear program that lets choices be mixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Edge:
    """Two nodes whose choices cost something together; the first one has the lower number."""

    first: int
    second: int
    cost: np.ndarray
    """By the choice of the first, and that of the second."""


@dataclasses.dataclass(frozen=True, eq=False)
class Energy:
    """What choices cost: for each node one of several has to be taken."""

    nodes: Sequence[np.ndarray]
    """For every node, the cost of each choice."""
    edges: Sequence[Edge]

    def of(self, choices: Sequence[int]) -> float:
        """The energy of one choice for each node."""
        alone = sum(float(costs[c]) for costs, c in zip(self.nodes, choices, strict=True))
        pairs = (float(e.cost[choices[e.first], choices[e.second]]) for e in self.edges)
        return alone + sum(pairs)


class Messages:
    """Messages between the nodes of an energy, and what follows from them.

    Whatever the messages are, what a pass returns is a lower bound; each makes it better.
    """

    def __init__(self, energy: Energy) -> None:
        self.forward = [np.zeros(edge.cost.shape[1]) for edge in energy.edges]
        """Of every edge, to its second node."""
        self.backward = [np.zeros(edge.cost.shape[0]) for edge in energy.edges]
        """Of every edge, to its first node."""
        self._after: list[list[int]] = [[] for _ in energy.nodes]
        self._before: list[list[int]] = [[] for _ in energy.nodes]
        for number, edge in enumerate(energy.edges):
            assert edge.first < edge.second
            self._after[edge.first].append(number)
            self._before[edge.second].append(number)

    def run(self, energy: Energy) -> tuple[float, list[int]]:
        """Passes messages up and down; the better bound of both, and choices that are near it."""
        up, _ = self._pass(energy, upward=True)
        down, choices = self._pass(energy, upward=False)
        return max(up, down), choices

    def _pass(self, energy: Energy, upward: bool) -> tuple[float, list[int]]:
        """A pass over all nodes.

        Edge by edge, cost + what the first node gives <= what is told to the second, so that the
        energy is at least what is left at nodes when each has given its share to the edges ahead.
        """
        bound, choices, least = 0.0, [-1] * len(energy.nodes), np.minimum.reduce
        sides = (self._after, self._before) if upward else (self._before, self._after)
        order = range(len(energy.nodes))
        for node in order if upward else reversed(order):
            ahead, behind = (side[node] for side in sides)
            belief = energy.nodes[node].copy()
            for number in self._after[node]:
                belief += self.backward[number]
            for number in self._before[node]:
                belief += self.forward[number]
            share = 1 / max(len(ahead), len(behind), 1)
            if left := 1 - len(ahead) * share:
                bound += left * float(least(belief))
            belief *= share
            if not upward:
                choices[node] = self._decided(energy, node, choices)
            for number in ahead:
                cost = energy.edges[number].cost
                if upward:
                    given = belief - self.backward[number]
                    self.forward[number] = least(given[:, None] + cost, axis=0)
                else:
                    given = belief - self.forward[number]
                    self.backward[number] = least(given + cost, axis=1)
        return bound, choices

    def _decided(self, energy: Energy, node: int, choices: list[int]) -> int:
        """The best choice of a node, given those of the nodes behind it."""
        total = energy.nodes[node].copy()
        for number in self._after[node]:
            edge = energy.edges[number]
            total += edge.cost[:, choices[edge.second]]
        for number in self._before[node]:
            total += self.forward[number]
        return int(total.argmin())
