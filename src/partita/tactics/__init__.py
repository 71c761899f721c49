"""Tactics: parts of a partitioning strategy, composed in a schedule."""

from partita.tactics.automatic import AutomaticPartition
from partita.tactics.base import (
    Action,
    Blocked,
    Change,
    Context,
    Outcome,
    Refusal,
    Stage,
    Tactic,
    in_turn,
    joined,
)
from partita.tactics.logical import LogicalAxes
from partita.tactics.manual import ManualPartition

__all__ = [
    "Action",
    "AutomaticPartition",
    "Blocked",
    "Change",
    "Context",
    "LogicalAxes",
    "ManualPartition",
    "Outcome",
    "Refusal",
    "Stage",
    "Tactic",
    "in_turn",
    "joined",
]
