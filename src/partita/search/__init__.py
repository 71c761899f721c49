"""Search: proposes tile actions, asks the cost model, keeps the best."""

from partita.search.mcts import tree_search
from partita.search.problem import Problem, SearchState
from partita.search.protocol import ALGORITHMS, EnoughError, SearchAlgorithm, algorithm, register
from partita.search.refine import refine

__all__ = [
    "ALGORITHMS",
    "EnoughError",
    "Problem",
    "SearchAlgorithm",
    "SearchState",
    "algorithm",
    "refine",
    "register",
    "tree_search",
]
