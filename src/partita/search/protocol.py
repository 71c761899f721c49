"""Search algorithms: their protocol, and a registry by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from partita.errors import TacticError, closest
from partita.search.problem import Problem, SearchState

SearchProgress = Callable[[int, SearchState], None]
"""Called with the number of states evaluated and the best so far."""


BUDGET = 40000
"""Default number of plans that a search may evaluate. Most cost little: they differ from others in
one class. The default search ends before if nothing improves; on two axes that is usual."""


class EnoughError(Exception):
    """Raised by a progress function to end a search with the best state so far."""


class SearchAlgorithm(Protocol):
    """Looks for a good state of a problem."""

    def __call__(
        self, problem: Problem, budget: int, seed: int, progress: SearchProgress
    ) -> SearchState:
        """Returns the best state found.

        Args:
          problem: the problem to search.
          budget: the most new states to evaluate.
          seed: the seed of whatever is random; equal seeds give equal results.
          progress: called now and then.
        """
        ...


ALGORITHMS: dict[str, SearchAlgorithm] = {}
"""The algorithms that `AutomaticPartition(search=...)` can name."""


def register(name: str) -> Callable[[SearchAlgorithm], SearchAlgorithm]:
    """Returns a decorator that registers a search algorithm, in place of another of that name."""

    def registered(algorithm: SearchAlgorithm) -> SearchAlgorithm:
        ALGORITHMS[name] = algorithm
        return algorithm

    return registered


def algorithm(name: str) -> SearchAlgorithm:
    """Returns the algorithm of a name.

    Raises:
      TacticError: there is none.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise TacticError(
            f"there is no search {name!r}{closest(str(name), ALGORITHMS)}; expected one of "
            f"{', '.join(sorted(ALGORITHMS))}"
        )
    return ALGORITHMS[name]
