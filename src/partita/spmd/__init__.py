"""Lowering of tilings to SPMD programs with explicit collectives."""

from partita.program.collectives import COLLECTIVES
from partita.spmd.instructions import Buffer, Collective, Reshard, Run
from partita.spmd.lower import Known, Lowerer, Lowering, ValuePlan
from partita.spmd.program import SpmdProgram
from partita.spmd.replication import ReplicatedUse, added, replicated_uses
from partita.spmd.reshard import reshard
from partita.spmd.steps import Step
from partita.spmd.unfold import unfold

__all__ = [
    "COLLECTIVES",
    "Buffer",
    "Collective",
    "Known",
    "Lowerer",
    "Lowering",
    "ReplicatedUse",
    "Reshard",
    "Run",
    "SpmdProgram",
    "Step",
    "ValuePlan",
    "added",
    "replicated_uses",
    "reshard",
    "unfold",
]
