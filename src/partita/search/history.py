"""History heuristic: changes of single classes that helped one plan are tried on others at once.

Polishing a plan takes hundreds of evaluations, and most do not help; trying changes that have
helped before takes a few. So plans are compared after these changes: of two that cost the same, one
may lead to a better one (Schaeffer, *The History Heuristic*, 1989).
"""

from __future__ import annotations

from partita.decisions import ShardClass
from partita.search.problem import Problem, SearchState


class HistoryHeuristic:
    """Changes of single classes that polished plans have."""

    def __init__(self, problem: Problem, limit: int) -> None:
        """Takes the problem, and the most states that may have been evaluated in all."""
        self._problem, self._limit = problem, limit
        self._actions: dict[ShardClass, None] = {}

    def note(self, polished: SearchState) -> None:
        """Records the changes of single classes that a plan has."""
        local = (move for move in polished.moves if isinstance(move, ShardClass))
        self._actions.update(dict.fromkeys(local))

    def adapted(self, state: SearchState) -> SearchState:
        """Returns a state after those recorded changes that improve it, one after the other.

        They are tried in the order in which the plan takes the axes, so that dimensions split along
        several axes end up in the same order.
        """
        problem = self._problem
        used = (axis for move in state.moves for axis in sorted(move.axes))
        order = dict.fromkeys((*used, *problem.axes))
        rank = {axis: number for number, axis in enumerate(order)}
        for action in sorted(self._actions, key=lambda action: rank[action.axis]):
            if problem.evaluations >= self._limit:
                break
            after = problem.step(state, action)
            if after is not None and problem.better(after, state):
                state = after
        return state
