"""Tactics: parts of a partitioning strategy, composed in a schedule."""

from partita.tactics.automatic import AutomaticPartition
from partita.tactics.base import Context, Outcome, Refusal, Stage, Tactic
from partita.tactics.logical import LogicalAxes
from partita.tactics.manual import ManualPartition

__all__ = [
    "AutomaticPartition",
    "Context",
    "LogicalAxes",
    "ManualPartition",
    "Outcome",
    "Refusal",
    "Stage",
    "Tactic",
]
