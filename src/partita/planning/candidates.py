"""Alternatives to the decision of a search, as whole plans, to choose from.

A search keeps the moves of the best plans that it has seen. They are followed again, and tactics
that come after it are applied to what they lead to.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Self

from partita.errors import TacticError
from partita.options import integer
from partita.planning.one_thread import alone
from partita.planning.schedule import Scheduled, lower_and_cost


class Searched:
    """Methods of `Plan` for plans that a search has found."""

    done: Scheduled

    @alone
    def candidates(self, count: int = 5) -> tuple[Self, ...]:
        """The best different plans that the last search of its history knows; this one comes first.

        In turn they are the best that the search has seen, and the best that it started from:
        ready-made strategies as one writes them by hand. Those of either kind differ from each
        other in time, and by 3 % of time or memory at least. Tactics after the search are applied
        to each. `partita.confirm` has a compiler choose between them.

        Args:
          count: how many at most, this one counted. There are fewer if a search knows no more.

        Raises:
          TacticError: no search is in the history, as in plans from files, which do not keep what
            a search has seen.
        """
        integer(count, "count", 1)
        this: Any = self
        others = itertools.islice(candidates(self.done), count - 1)
        return this, *(
            dataclasses.replace(this, done=done, meshes=(), not_kept=()) for done in others
        )


def candidates(done: Scheduled) -> Iterator[Scheduled]:
    """Yields the schedule with other decisions of its last search, best first.

    Raises:
      TacticError: there was no search, or one inside of another tactic.
    """
    position = _searched(done)
    stage, entry = done.before(position), done.history[position]
    before = Scheduled(stage, *lower_and_cost(stage), done.history[:position])
    tactic: Any = entry.tactic
    return (
        _with_the_rest(before.decided(tactic, outcome), done, position + 1)
        for outcome in tactic.candidates(stage, entry.search)
        if outcome.assignment != entry.assignment
    )


def _with_the_rest(done: Scheduled, model: Scheduled, position: int) -> Scheduled:
    """A schedule with the tactics of another one applied from a position on."""
    for entry in model.history[position:]:
        done = done.then(entry.tactic)
    return done


def _searched(done: Scheduled) -> int:
    """The position of the last search."""
    found = [number for number, entry in enumerate(done.history) if entry.search is not None]
    if not found:
        raise TacticError(
            "the plan has no search in its history, so that there are no candidates beside it: "
            "plan with AutomaticPartition; a plan file does not keep what its search has seen"
        )
    name, tactic = done.history[found[-1]].name, done.history[found[-1]].tactic
    if not hasattr(tactic, "candidates"):
        raise TacticError(
            f"the search of the plan is inside of {name}, so that there are no candidates beside "
            "it: put AutomaticPartition into the schedule itself"
        )
    return found[-1]
