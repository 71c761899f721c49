"""Search: proposes tile actions, asks the cost model, keeps the best."""

from partita.search import beam, greedy, team
from partita.search.exhaustive import Exhausted, exhaust
from partita.search.iterated import search as iterated_search
from partita.search.mcts import tree_search
from partita.search.problem import Move, Problem, SearchState
from partita.search.protocol import (
    ALGORITHMS,
    BUDGET,
    EnoughError,
    SearchAlgorithm,
    algorithm,
    register,
)
from partita.search.refine import refine

__all__ = [
    "ALGORITHMS",
    "BUDGET",
    "EnoughError",
    "Exhausted",
    "Move",
    "Problem",
    "SearchAlgorithm",
    "SearchState",
    "algorithm",
    "beam",
    "exhaust",
    "greedy",
    "iterated_search",
    "refine",
    "register",
    "team",
    "tree_search",
]
