"""Search algorithms: what one is, and which there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from partita.errors import TacticError, closest
from partita.search.problem import Problem, SearchState

SearchProgress = Callable[[int, SearchState], None]
"""Called with the number of states evaluated and the best so far."""


BUDGET = 40000
"""Plans that a search may evaluate, if it is not told. Most cost little: they differ from others in
one class. The default search ends before if nothing becomes better; on two axes that is usual."""


class EnoughError(Exception):
    """Raised by whoever is told of the progress of a search, to end it with the best so far."""


class SearchAlgorithm(Protocol):
    """Looks for a good state of a problem."""

    def __call__(
        self, problem: Problem, budget: int, seed: int, progress: SearchProgress
    ) -> SearchState:
        """The best state found.

        Args:
          problem: what to search.
          budget: how many new states may be evaluated.
          seed: of whatever is random; equal seeds give equal results.
          progress: called now and then.
        """
        ...


ALGORITHMS: dict[str, SearchAlgorithm] = {}
"""The algorithms that `AutomaticPartition(search=...)` can name."""


def register(name: str) -> Callable[[SearchAlgorithm], SearchAlgorithm]:
    """A decorator: makes a search algorithm known by a name, in place of another of that name."""

    def registered(algorithm: SearchAlgorithm) -> SearchAlgorithm:
        ALGORITHMS[name] = algorithm
        return algorithm

    return registered


def algorithm(name: str) -> SearchAlgorithm:
    """The algorithm of a name.

    Raises:
      TacticError: there is none.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise TacticError(
            f"there is no search {name!r}{closest(str(name), ALGORITHMS)}; expected one of "
            f"{', '.join(sorted(ALGORITHMS))}"
        )
    return ALGORITHMS[name]
