"""Explaining a plan: which decision sharded a value, what a collective is for, what others cost.

Nothing is decided here. What a schedule did is read from its history, the layouts before and after
each tactic; reasons are those of the propagation and of the lowering; alternatives are applied,
lowered and estimated as plans are.
"""

from partita.explain.alternatives import Alternative
from partita.explain.collectives import CollectiveExplanation
from partita.explain.explanation import ALTERNATIVES, EVERY, Explanation, explain
from partita.explain.origins import Decision, LeftOut
from partita.explain.values import ValueExplanation

__all__ = [
    "ALTERNATIVES",
    "EVERY",
    "Alternative",
    "CollectiveExplanation",
    "Decision",
    "Explanation",
    "LeftOut",
    "ValueExplanation",
    "explain",
]
