"""Readers of the buffers of an SPMD program."""

from __future__ import annotations

from collections.abc import Iterable

from partita.spmd import Reshard
from partita.spmd.instructions import Case, Instruction, Section

MOVING = frozenset(
    ("all_gather", "all_to_all", "collective_permute", "slice", "transpose", "reshape")
)
"""Steps and operations that only say where elements are."""


class Readers:
    """Readers of each buffer, among some instructions and sections."""

    def __init__(self, items: Iterable[Instruction | Section]) -> None:
        self.of: dict[int, list[Instruction | Section]] = {}
        for item in items:
            for buffer in _read(item):
                self.of.setdefault(buffer, []).append(item)


def _read(item: Instruction | Section) -> tuple[int, ...]:
    """The buffers that an instruction reads, or that a section ends with."""
    match item:
        case Reshard():
            return (item.input,)
        case Case():
            return (item.index,)
        case Section():
            return item.results
        case _:
            return item.inputs
