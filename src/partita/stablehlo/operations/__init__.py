"""Operations: one entry for each kind that needs functions of its attributes.

A kind is a row of `partita.program.op_traits`. If its rows, rules or local forms depend on
attributes, it also has an `Entry` in the file of its family here. Every stage that treats kinds
differently asks these two: rules when a program is read, letters when dimensions are split, local
forms when a device's program is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.operations import (
    calls,
    constants,
    dynamic_slices,
    gathers,
    given,
    moves,
    products,
    ragged,
    reductions,
    scatters,
    shapes,
    windows,
)
from partita.stablehlo.operations.entry import Entry

_FAMILIES = (
    *(calls, constants, dynamic_slices, gathers, given, moves, products, ragged),
    *(reductions, scatters, shapes, windows),
)

ENTRIES: Mapping[str, Entry] = {
    kind: entry for family in _FAMILIES for kind, entry in family.ENTRIES.items()
}
"""Entries by kind."""

NO_ENTRY = Entry()


def entry(kind: str) -> Entry:
    """Returns the entry of a kind of operations; an empty one if it needs none."""
    return ENTRIES.get(kind, NO_ENTRY)


def localize(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Turns an MLIR operation with local operands into its device-local form; its results."""
    local = entry(run.operation.kind).local
    return build.place(op, run.outputs) if local is None else local(op, run, build)
