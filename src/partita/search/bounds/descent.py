"""What a plan could become if every class chose its layout for itself: descents of the relaxed
problem, which price no plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partita.search.bounds.messages import Energy, joined, starts
from partita.search.bounds.relaxed import Relaxed
from partita.spmd import Lowering
from partita.tiling import Tiling

SWEEPS = 10
"""How often a descent goes over what has changed around it, at most."""

GAIN = 1e-9
"""What a choice has to gain, as a share of what its node costs: more than rounding."""


class Descent:
    """Descents of one energy: a choice is exchanged as long as one by itself makes it less."""

    def __init__(self, energy: Energy) -> None:
        sizes = np.array(energy.sizes, dtype=np.int64)
        self.first = np.concatenate([[0], sizes.cumsum()])
        """Where the choices of every node begin, of all choices of all nodes."""
        self._alone = energy.alone
        self._beside: list[list[tuple[int, np.ndarray]]] = [[] for _ in energy.sizes]
        """Of every node, its neighbours, and costs by its choice and theirs."""
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
        """What every choice of every node costs beside some choices of all others."""
        rows = self._rows + np.array(choices, dtype=np.int64)[self._from] * self._widths
        costs = self._costs[np.repeat(rows, self._widths) + self._within]
        found: np.ndarray = self._alone + np.bincount(self._to, costs, len(self._alone))
        return found

    def run(self, choices: Sequence[int], may: np.ndarray | None = None) -> list[int]:
        """Choices of which none is better by itself, from some on, node by node.

        Args:
          choices: to begin with.
          may: of all choices of all nodes, those that may be taken; all by default.
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
    """Where descents of a relaxed problem end that begin at plans."""

    def __init__(self, relaxed: Relaxed, weight: float) -> None:
        """Prepares them, at a weight of compute (see `Relaxed.energy`)."""
        self._relaxed = relaxed
        energy = relaxed.energy(weight)
        self._descent = Descent(energy)
        self._sizes, self._first = joined(relaxed.shards()), self._descent.first
        self._counts = np.diff(self._first)

    def tilings(self, lowering: Lowering) -> Iterator[Tiling]:
        """Where one ends that may go anywhere, and one in which no value takes more memory than it
        does in the plan."""
        choices = self._relaxed.of(lowering)
        yield self._relaxed.tiling(self._descent.run(choices))
        at = self._first[:-1] + np.array(choices, dtype=np.int64)
        now = np.repeat(self._sizes[at], self._counts)
        yield self._relaxed.tiling(self._descent.run(choices, self._sizes <= now))
