"""Choice of values to gather again for lack of memory: which value classes, between which uses.

The choice is greedy: each step takes the way that costs least for what it frees at the peak.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from partita.analysis import Between
from partita.cost.estimate import StepTime
from partita.cost.memory.model import Copies
from partita.sparse import Rows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Way to gather a value class again, for all members together."""

    between: Between
    exposed: float
    """Extra seconds of collectives that compute waits for, compared with keeping copies."""
    hidden: tuple[float, ...]
    """Extra seconds of collectives that overlap with other work, on each link."""
    copies: tuple[Copies, ...]
    """Buffers that replace those of kept copies."""
    row: int
    """Row number of these copies' changes of memory."""
    number: int = 0
    """Number of the plan that gathers so, if that is in loops; its moves overlap with others'."""


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Time and memory of a step, with the values that it gathers again."""

    time: StepTime
    peak: float
    """Bytes at the peak, without arguments."""
    regathered: Mapping[int, Between]


class Regathering:
    """Choice for one lowering that does not fit with all copies kept."""

    def __init__(
        self,
        live: np.ndarray,
        room: float,
        kept: Gathered,
        moves: Mapping[int, tuple[Again, ...]],
        buffers: Rows,
    ) -> None:
        """Prepares the choice.

        Args:
          live: bytes alive at every position if all copies are kept, without arguments.
          room: bytes that may be alive.
          kept: the step in that case; of other classes than those in `moves` it may gather some
            again.
          moves: by value class, how its copies are kept, and the ways to gather it again.
          buffers: changes of memory by copies, by row.
        """
        self.live, self.room, self.kept, self.buffers = live, room, kept, buffers
        self.classes = list(moves)
        counts = [len(ways) for ways in moves.values()]
        self.firsts = list(itertools.accumulate(counts, initial=0))[:-1]
        """Row in which the copies of each class are kept; its ways to gather again follow."""
        self.rows = list(itertools.chain.from_iterable(moves.values()))
        self.owner = np.repeat(np.arange(len(counts)), counts).tolist()
        """Place of every row's class."""
        self.exposed = np.array([row.exposed for row in self.rows])
        self.hidden = np.zeros((len(self.rows), len(kept.time.link_times)))
        if self.rows:
            hidden = np.array([row.hidden for row in self.rows])
            self.hidden[:, : hidden.shape[1]] = hidden

    def decided(self, between: Mapping[int, int]) -> tuple[Gathered, np.ndarray]:
        """Returns the step in which this is decided of each class, and its live bytes."""
        chosen = self.firsts.copy()
        for row, place in enumerate(self.owner):  # the last that drops copies for no other uses
            if self.rows[row].between <= between[self.classes[place]]:
                chosen[place] = row
        live = self._live(chosen)
        return self._gathered(chosen, live), live

    def best(self) -> Gathered:
        """Returns the quickest of the tried choices that fits; if none does, the smallest."""
        if not self.rows:
            return self.kept
        found = [(self.firsts, self.live), self._all_far()]
        if self._in_loops():
            found.append(self._most())
        if self._may_fit():
            found.append(self._cheapest_first())
        tried = [self.kept, *(self._gathered(*each) for each in found[1:])]
        best = min(range(len(tried)), key=lambda n: self._rank(tried[n]))
        if tried[best].peak > self.room:
            return tried[best]
        return self._gathered(*self._without_needless(*found[best]))

    def _rank(self, gathered: Gathered) -> tuple[float, float]:
        return max(gathered.peak, self.room), gathered.time.step_time

    def _all_far(self) -> tuple[list[int], np.ndarray]:
        chosen = [first + (self.rows[first + 1].between is Between.FAR) for first in self.firsts]
        return chosen, self._live(chosen)

    def _in_loops(self) -> bool:
        return any(row.between.in_loops for row in self.rows)

    def _most(self) -> tuple[list[int], np.ndarray]:
        """Gathers everything again between as many uses as possible."""
        chosen = [*(first - 1 for first in self.firsts[1:]), len(self.rows) - 1]
        return chosen, self._live(chosen)

    def _live(self, chosen: Sequence[int]) -> np.ndarray:
        """Returns the live bytes at every position with these rows in place of kept copies."""
        moved = [place for place, first in enumerate(self.firsts) if chosen[place] > first]
        kept, again = ([rows[place] for place in moved] for rows in (self.firsts, chosen))
        live: np.ndarray = self.live + self._difference(kept, again)
        return live

    def _may_fit(self) -> bool:
        """Returns whether the step would fit without any copies that can be gathered again."""
        least = self.live + self._difference(self.firsts, [])
        return float(least.max(initial=0.0)) <= self.room

    def _cheapest_first(self) -> tuple[list[int], np.ndarray]:
        """Gathers more and more again, until it fits or nothing helps any more."""
        chosen, live = self.firsts.copy(), self.live
        copies = [(number, c) for number, row in enumerate(self.rows) for c in row.copies]
        lengths = [len(c.start) for _, c in copies]
        number = np.repeat([n for n, _ in copies], lengths)
        bytes_ = np.repeat([c.bytes for _, c in copies], lengths)
        start, end = (
            np.concatenate(side)
            for side in ([c.start for _, c in copies], [c.end for _, c in copies])
        )
        owner = np.array(self.owner)
        left = np.ones(len(self.rows), dtype=bool)
        left[self.firsts] = False
        exposed, hidden = 0.0, np.zeros(self.hidden.shape[1])
        at = int(live.argmax())
        while live[at] > self.room:
            now = np.array(chosen)[owner]
            there = (start <= at) & (at <= end)
            alive = np.bincount(number[there], bytes_[there], len(self.rows))
            freed = alive[now] - alive
            useful = np.flatnonzero(left & (freed > 0))
            if not useful.size:
                break
            more = self.exposed[useful] - self.exposed[now[useful]]
            beside = self.hidden[useful] - self.hidden[now[useful]]
            slower = self._step(exposed + more, hidden + beside) - self._step(exposed, hidden)
            needed = np.minimum(freed[useful], live[at] - self.room)
            # What is hidden costs nothing as long as a link is not the slowest: that comes second.
            order = np.lexsort(((more + beside.sum(axis=1)) / needed, slower / needed))
            best = int(order[0])
            row = int(useful[best])
            place = self.owner[row]
            after = live + self._difference([chosen[place]], [row])
            left[row] = False
            if after.max() <= live[at]:
                exposed, hidden = exposed + more[best], hidden + beside[best]
                chosen[place], live = row, after
                left[self.firsts[place] : row] = False
                at = int(live.argmax())
        return chosen, live

    def _without_needless(
        self, chosen: Sequence[int], live: np.ndarray
    ) -> tuple[list[int], np.ndarray]:
        """Returns to keeping copies where there is room after all, the costliest first."""
        chosen = list(chosen)
        again = [p for p, row in enumerate(chosen) if row > self.firsts[p]]
        spent = self.exposed + self.hidden.sum(axis=1)
        for place in sorted(again, key=lambda p: -spent[chosen[p]]):
            for row in range(self.firsts[place], chosen[place]):
                after = live + self._difference([chosen[place]], [row])
                if after.max() <= self.room:
                    chosen[place], live = row, after
                    break
        return chosen, live

    def _difference(self, less: Sequence[int], more: Sequence[int]) -> np.ndarray:
        """Returns the bytes at every position that replacing the buffers of some rows adds."""
        changes = np.zeros(len(self.live))
        rows = np.array([self.rows[row].row for row in (*more, *less)], dtype=np.int64)
        self.buffers.add(changes, rows, np.repeat([1.0, -1.0], [len(more), len(less)]))
        return changes.cumsum()

    def _step(self, exposed: np.ndarray | float, hidden: np.ndarray) -> np.ndarray:
        """Returns the seconds of the step with extra collectives, without constant terms."""
        time = self.kept.time
        links = (hidden + np.array(time.link_times)).max(axis=-1, initial=0.0)
        return np.asarray(exposed + np.maximum(time.compute_time, links))

    def _gathered(self, chosen: Sequence[int], live: np.ndarray) -> Gathered:
        time, rows = self.kept.time, list(chosen)
        exposed = time.exposed_time + float(self.exposed[rows].sum())
        links = np.array(time.link_times) + self.hidden[rows].sum(axis=0)
        return Gathered(
            StepTime(time.compute_time, exposed, tuple(links.tolist())),
            float(live.max(initial=0.0)),
            {
                **self.kept.regathered,
                **{
                    self.classes[place]: self.rows[row].between
                    for place, row in enumerate(chosen)
                    if row > self.firsts[place]
                },
            },
        )


def gathered_again(
    live: np.ndarray,
    room: float,
    kept: Gathered,
    ways: Mapping[int, tuple[Again, ...]],
    decided: Mapping[int, int],
    buffers: Rows,
    choose: bool,
) -> Gathered:
    """Returns the step that gathers again as decided, and more where memory is short; in loops only
    if it does not fit otherwise.

    Args:
      live: bytes alive at every position if all copies are kept, without arguments.
      room: bytes that may be alive.
      kept: the step in that case.
      ways: by value class, how its copies are kept, and the ways to gather it again.
      decided: between which uses, for the value classes of which that is decided.
      buffers: changes of memory by copies, by row.
      choose: whether to gather others again where memory is short.
    """
    found = kept
    fixed = {index: each for index, each in ways.items() if index in decided}
    if fixed:
        found, live = Regathering(live, room, found, fixed, buffers).decided(decided)
    start, open_ = found, {index: each for index, each in ways.items() if index not in decided}
    ahead = {i: tuple(w for w in each if not w.between.in_loops) for i, each in open_.items()}
    if choose and found.peak > room:
        some = {index: each for index, each in ahead.items() if len(each) > 1}
        found = Regathering(live, room, start, some, buffers).best()
    if choose and found.peak > room and ahead != open_:
        other = Regathering(live, room, start, open_, buffers).best()
        found = other if other.peak < found.peak else found
    return found
