"""Search: proposes tile actions, asks the cost model, keeps the best."""

from partita.search.iterated import search as iterated_search
from partita.search.mcts import tree_search
from partita.search.problem import Move, Problem, SearchState
from partita.search.protocol import ALGORITHMS, EnoughError, SearchAlgorithm, algorithm, register
from partita.search.refine import refine

__all__ = [
    "ALGORITHMS",
    "EnoughError",
    "Move",
    "Problem",
    "SearchAlgorithm",
    "SearchState",
    "algorithm",
    "iterated_search",
    "refine",
    "register",
    "tree_search",
]
