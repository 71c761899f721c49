"""Cost tables of pairs of nodes of the relaxed problem, by the choices of both.

All tables are in one array, so that one pass weighs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from partita.search.bounds.messages import joined, starts
from partita.search.bounds.uses import Moves, Shared, Uses, shared_moves


class Tables:
    """Tables of a relaxed problem: first the fixed ones, then those of values with several uses.

    The latter share out their reshards among the uses.
    """

    def __init__(self, places: Sequence[int], moves: Iterable[Moves], uses: Sequence[Uses]) -> None:
        """Writes the tables one after the other.

        Args:
          places: the position of every node. The rows of a table are the choices of the node that
            comes first, its columns those of the other.
          moves: the costs that do not depend on shares.
          uses: the reshards of values for their uses.
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
        """Numbers of the shares, by entry of the tables that share."""
        pairs = [(move.first, move.second) for move in every]
        nodes = [(b, a) if turn else (a, b) for (a, b), turn in zip(pairs, turned, strict=True)]
        self._nodes = np.array(nodes, dtype=np.int64).reshape(-1, 2)
        self.ends = [(places[a], places[b]) for a, b in nodes]
        """Positions of the two nodes of every table."""
        shapes = [
            move.seconds.T.shape if turn else move.seconds.shape
            for move, turn in zip(every, turned, strict=True)
        ]
        self._widths = np.array([width for _, width in shapes], dtype=np.int64)
        self._first = starts(height * width for height, width in shapes)

    def costs(self, compute: float, beside: float) -> np.ndarray:
        """Returns all tables, with weights of compute and of seconds that may be hidden."""
        kept, spent = self._weighed(compute, beside)
        shared = self._shared.seconds(beside)[self._shares]
        return np.concatenate([kept, shared + spent])

    def _weighed(self, compute: float, beside: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns costs of fixed tables, and compute of the others; memoises the last weights."""
        if self._last is None or self._last[0] != (compute, beside):
            spent, count = compute * self._compute, len(self._seconds)
            kept = self._seconds - (1 - beside) * self._hidden + spent[:count]
            self._last = (compute, beside), (kept, spent[count:])
        return self._last[1]

    def sums(self, choices: np.ndarray) -> tuple[float, float]:
        """Returns the seconds of compute, and those that may be hidden, of some choices."""
        first, second = choices[self._nodes].T
        at, kept = self._first + first * self._widths + second, len(self._hidden)
        here = at[at < kept], self._shares[at[at >= kept] - kept]
        hidden = self._hidden[here[0]].sum() + self._shared.hidden()[here[1]].sum()
        return float(self._compute[at].sum()), float(hidden)

    def share(self, choices: np.ndarray, step: float) -> None:
        """Moves shares towards uses with equal needs under some choices of all nodes."""
        self._shared.share(choices, step)
