"""Operations that are sharded as the program says: constraints, manual computations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.collectives import COLLECTIVES
from partita.program.op_traits import CONSTRAINT, FULL_TO_SHARD, MANUAL, SHARD_TO_FULL
from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun, opened, renumber
from partita.stablehlo.operations.entry import Entry


def _operand(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Returns the operand unchanged: it has already been resharded."""
    return [op.operands[0]]


def _manual(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Inlines the body of a manual computation unchanged."""
    return opened(op.regions[0].blocks[0], op.operands, build)


def _collective(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Keeps the collective of a computation that is manual over some axes, renumbered."""
    renumber(op, build)
    return build.place(op, run.outputs)


ENTRIES = {
    CONSTRAINT: Entry(local=_operand),
    FULL_TO_SHARD: Entry(local=_operand),
    SHARD_TO_FULL: Entry(local=_operand),
    MANUAL: Entry(local=_manual),
    **{f"stablehlo.{name}": Entry(local=_collective) for name in COLLECTIVES},
}
"""Entries of operations that are sharded as the program says, by kind."""
