"""Alternatives to the decision of a search, for a compiler to choose from.

Of the plans near the best most are alike, to a compiler as to the cost model. So these are plans
that are apart: the best that the search has seen and, in turn with them, the best of what it
started from, which are the strategies that experts write by hand.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from partita.decisions import ShardValues
from partita.search import Move, Problem, SearchState
from partita.search.problem import alike
from partita.search.record import near
from partita.search.starts import plain_starts


@dataclasses.dataclass(frozen=True)
class Choice:
    """A plan that could be taken, and where it is from."""

    state: SearchState
    told: str


def choices(problem: Problem, seen: Sequence[Sequence[Move]]) -> Iterator[Choice]:
    """Plans that could be taken, the best that was seen first.

    Those that are worse in kind are left out: that do not fit where it does, or have collectives
    that are avoided.

    Args:
      problem: what was searched; what had been evaluated of it may be forgotten.
      seen: moves of the best plans that were seen, best first.
    """
    best = [Choice(problem.replay(moves), "seen by the search") for moves in seen]
    started = [Choice(state, "a start of the search") for state in _starts(problem)]
    found: list[SearchState] = []
    level = problem.rank(best[0].state)[0]
    for choice in filter(None, itertools.chain(*itertools.zip_longest(best, started))):
        state = choice.state
        known = any(alike(state.cost, other.cost) for other in found)
        if not known and problem.rank(state)[0] <= level:
            found.append(state)
            yield choice


def _starts(problem: Problem) -> list[SearchState]:
    """The different plans to start from, best first, and of those near each other the simplest.

    They are strategies as they are written by hand; of programs that have no names that tell of
    these, plans that one color group leads.
    """
    written = [moves for moves in problem.starts if all(isinstance(m, ShardValues) for m in moves)]
    starts: Iterable[Sequence[Move]] = written or plain_starts(problem)
    found: list[SearchState] = []
    for state in map(problem.replay, starts):  # the simplest come first
        if not any(near(state.cost, other.cost) for other in found):
            found.append(state)
    return sorted(found, key=problem.rank)
