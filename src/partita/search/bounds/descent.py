"""Coordinate descent of the relaxed problem, from a plan: every class chooses its own layout.

No plan is priced on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partita.search.bounds.messages import Energy, joined, starts
from partita.search.bounds.relaxed import Relaxed
from partita.spmd import Lowering
from partita.tiling import Tiling

SWEEPS = 10
"""Most sweeps of a descent over the nodes whose neighbours have changed."""

GAIN = 1e-9
"""Least relative gain of a choice in the cost of its node: more than rounding."""


class Descent:
    """Coordinate descent of one energy: changes single choices as long as one lowers it."""

    def __init__(self, energy: Energy) -> None:
        sizes = np.array(energy.sizes, dtype=np.int64)
        self.first = np.concatenate([[0], sizes.cumsum()])
        """Start of the choices of every node, among all choices of all nodes."""
        self._alone = energy.alone
        self._beside: list[list[tuple[int, np.ndarray]]] = [[] for _ in energy.sizes]
        """Neighbours of every node, with costs by its choice and theirs."""
        for edge in energy.edges:
            self._beside[edge.first].append((edge.second, edge.cost))
            self._beside[edge.second].append((edge.first, np.ascontiguousarray(edge.cost.T)))
        ways = [
            (node, other, cost)
            for node, beside in enumerate(self._beside)
            for other, cost in beside
        ]
        self._from = np.array([node for node, _, _ in ways], dtype=np.int64)
        widths = np.array([cost.shape[1] for _, _, cost in ways], dtype=np.int64)
        ends = widths.cumsum()
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - widths, widths)
        self._rows = starts(cost.size for _, _, cost in ways)
        self._widths, self._within = widths, within
        self._to = np.repeat(self.first[[other for _, other, _ in ways]], widths) + within
        self._costs = joined([cost for _, _, cost in ways])

    def totals(self, choices: Sequence[int]) -> np.ndarray:
        """Returns the cost of every choice of every node, given choices of all others."""
        rows = self._rows + np.array(choices, dtype=np.int64)[self._from] * self._widths
        costs = self._costs[np.repeat(rows, self._widths) + self._within]
        found: np.ndarray = self._alone + np.bincount(self._to, costs, len(self._alone))
        return found

    def run(self, choices: Sequence[int], may: np.ndarray | None = None) -> list[int]:
        """Returns choices that no single change improves, unless the sweeps end before.

        Args:
          choices: the choices to start from.
          may: mask over all choices of all nodes that may be made; all by default.
        """
        found, totals = list(choices), self.totals(choices)
        if may is not None:
            totals[~may] = np.inf
        first = self.first.tolist()
        at = self.first[:-1] + np.array(found, dtype=np.int64)
        least = np.minimum.reduceat(totals, self.first[:-1])
        due = set(np.flatnonzero(least < totals[at]).tolist())
        for sweep in range(SWEEPS):
            changed = set[int]()
            for node in sorted(due, reverse=bool(sweep % 2)):
                costs, now = totals[first[node] : first[node + 1]], found[node]
                best = int(costs.argmin())
                if costs[best] >= costs[now] - GAIN * abs(costs[now]):
                    continue
                found[node] = best
                for other, cost in self._beside[node]:
                    totals[first[other] : first[other + 1]] += cost[best] - cost[now]
                    changed.add(other)
            if not changed:
                break
            due = changed
        return found


class Descents:
    """Tilings that descents of a relaxed problem reach from plans."""

    def __init__(self, relaxed: Relaxed, weight: float) -> None:
        """Prepares descents at a weight of compute (see `Relaxed.energy`)."""
        self._relaxed = relaxed
        energy = relaxed.energy(weight)
        self._descent = Descent(energy)
        self._sizes, self._first = joined(relaxed.shards()), self._descent.first
        self._counts = np.diff(self._first)

    def tilings(self, lowering: Lowering) -> Iterator[Tiling]:
        """Yields the end of a free descent, then of one in which no shard grows.

        Both start from the plan of the lowering.
        """
        choices = self._relaxed.of(lowering)
        yield self._relaxed.tiling(self._descent.run(choices))
        at = self._first[:-1] + np.array(choices, dtype=np.int64)
        now = np.repeat(self._sizes[at], self._counts)
        yield self._relaxed.tiling(self._descent.run(choices, self._sizes <= now))
