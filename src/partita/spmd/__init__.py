"""Lowering of tilings to SPMD programs with explicit collectives, and their emission."""

from partita.spmd.lower import Lowerer, Lowering, ValuePlan
from partita.spmd.program import Buffer, Collective, Move, Run, SpmdProgram, entries, spec, unfold
from partita.spmd.reshard import COLLECTIVES, Step, reshard
from partita.spmd.whole import WholeUse, added, whole_uses

__all__ = [
    "COLLECTIVES",
    "Buffer",
    "Collective",
    "Lowerer",
    "Lowering",
    "Move",
    "Run",
    "SpmdProgram",
    "Step",
    "ValuePlan",
    "WholeUse",
    "added",
    "entries",
    "reshard",
    "spec",
    "unfold",
    "whole_uses",
]
