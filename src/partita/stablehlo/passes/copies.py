"""Constants for each use: what reads one constant need not be sharded alike for that."""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import find, ir, main_function


def copy_for_each_use(module: Any) -> None:
    """Gives every use of a constant or iota its own copy, those by other constants included."""
    for op in find(main_function(module).operation, _is_generated):
        for owner, number in [(use.owner, use.operand_number) for use in op.results[0].uses][1:]:
            with ir.InsertionPoint(op):
                owner.operands[number] = op.clone().results[0]


def _is_generated(op: Any) -> bool:
    return traits(op.name).treatment == "generated" or op.name == "sdy.constant"
