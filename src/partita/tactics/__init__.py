"""Tactics: parts of a partitioning strategy, composed in a schedule."""

from partita.decisions import Action, Change, Context, Request, Stage
from partita.tactics.automatic import AutomaticPartition
from partita.tactics.combine import in_turn, joined
from partita.tactics.data import DataParallel
from partita.tactics.expert import ExpertParallel
from partita.tactics.fsdp import FullyShardedDataParallel
from partita.tactics.logical import LogicalAxes
from partita.tactics.manual import ManualPartition
from partita.tactics.megatron import Megatron
from partita.tactics.microbatch import Microbatch
from partita.tactics.placement import place
from partita.tactics.protocol import Blocked, Outcome, Refusal, Suggestion, Tactic
from partita.tactics.sequence import SequenceParallel
from partita.tactics.zero import ZeRO

__all__ = [
    "Action",
    "AutomaticPartition",
    "Blocked",
    "Change",
    "Context",
    "DataParallel",
    "ExpertParallel",
    "FullyShardedDataParallel",
    "LogicalAxes",
    "ManualPartition",
    "Megatron",
    "Microbatch",
    "Outcome",
    "Refusal",
    "Request",
    "SequenceParallel",
    "Stage",
    "Suggestion",
    "Tactic",
    "ZeRO",
    "in_turn",
    "joined",
    "place",
]
