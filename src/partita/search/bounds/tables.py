"""What pairs of nodes of the relaxed problem cost, by the choices of both: all tables one after the
other, so that one pass over an array weighs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from partita.search.bounds.messages import joined, starts
from partita.search.bounds.uses import Moves, Shared, Uses, shared_moves


class Tables:
    """The tables of a relaxed problem: first those that stay, then those of values that share out
    what they move among several uses."""

    def __init__(self, places: Sequence[int], moves: Iterable[Moves], uses: Sequence[Uses]) -> None:
        """Lays them out.

        Args:
          places: where every node stands. A table is by the choices of the node that stands first,
            then by those of the other.
          moves: what costs the same whatever is shared.
          uses: values and what they move for uses.
        """
        single, several = ([u for u in uses if (len(u.ops) > 1) == more] for more in (False, True))
        kept = [*moves, *(move for each in single for _, move in each.moves())]
        self._shared = Shared(several)
        shared = list(shared_moves(several))
        every = [*kept, *(move for move, _ in shared)]
        turned = [places[move.first] > places[move.second] for move in every]

        def laid_out(costs: Sequence[np.ndarray], first: int = 0) -> np.ndarray:
            ways = zip(costs, turned[first:], strict=False)
            return joined([cost.T if turn else cost for cost, turn in ways])

        self._last: tuple[tuple[float, float], tuple[np.ndarray, np.ndarray]] | None = None
        self._seconds = laid_out([move.seconds for move in kept])
        self._hidden = laid_out([move.hidden for move in kept])
        self._compute = laid_out([move.compute for move in every])
        self._shares = laid_out([shares for _, shares in shared], len(kept)).astype(np.int64)
        """Of the entries of those that share, the numbers of the shares."""
        pairs = [(move.first, move.second) for move in every]
        nodes = [(b, a) if turn else (a, b) for (a, b), turn in zip(pairs, turned, strict=True)]
        self._nodes = np.array(nodes, dtype=np.int64).reshape(-1, 2)
        self.ends = [(places[a], places[b]) for a, b in nodes]
        """The places of the nodes of every table."""
        shapes = [
            move.seconds.T.shape if turn else move.seconds.shape
            for move, turn in zip(every, turned, strict=True)
        ]
        self._widths = np.array([width for _, width in shapes], dtype=np.int64)
        self._first = starts(height * width for height, width in shapes)

    def costs(self, compute: float, beside: float) -> np.ndarray:
        """All tables, with weights of compute and of what may be hidden."""
        kept, spent = self._weighed(compute, beside)
        shared = self._shared.seconds(beside)[self._shares]
        return np.concatenate([kept, shared + spent])

    def _weighed(self, compute: float, beside: float) -> tuple[np.ndarray, np.ndarray]:
        """The costs of what stays, and compute of the others; found once for the same weights."""
        if self._last is None or self._last[0] != (compute, beside):
            spent, count = compute * self._compute, len(self._seconds)
            kept = self._seconds - (1 - beside) * self._hidden + spent[:count]
            self._last = (compute, beside), (kept, spent[count:])
        return self._last[1]

    def sums(self, choices: np.ndarray) -> tuple[float, float]:
        """Seconds of compute, and those that may be hidden, of some choices of all nodes."""
        first, second = choices[self._nodes].T
        at, kept = self._first + first * self._widths + second, len(self._hidden)
        here = at[at < kept], self._shares[at[at >= kept] - kept]
        hidden = self._hidden[here[0]].sum() + self._shared.hidden()[here[1]].sum()
        return float(self._compute[at].sum()), float(hidden)

    def share(self, choices: np.ndarray, step: float) -> None:
        """Has uses that need alike, under some choices of all nodes, share more of that."""
        self._shared.share(choices, step)
