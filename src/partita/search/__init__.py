"""Search: proposes tile moves, asks the cost model, keeps the best."""

from partita.search.mcts import tree_search
from partita.search.problem import Move, Problem, State, taken_by
from partita.search.refine import refine

__all__ = ["Move", "Problem", "State", "refine", "taken_by", "tree_search"]
