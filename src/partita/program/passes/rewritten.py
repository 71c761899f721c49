"""Result of a program pass: the new program, and where everything of the old one is in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from partita.program.ir import Program


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A program after passes, with maps from the program before them."""

    program: Program
    values: Mapping[int, int]
    """Value before -> value after: the first one where several hold the same. Values that are no
    longer made have no entry."""
    operations: Mapping[int, int]
    """Operation before -> operation after: the first one where it runs several times."""
    changed: frozenset[int]
    """Operations after that are new, or that read other values than the one they come from."""

    def then(self, each: Pass) -> Rewritten:
        """Returns the result of these passes and one more, mapped from the first program."""
        after = each(self.program)
        moved = {after.operations[op] for op in self.changed if op in after.operations}
        return Rewritten(
            after.program,
            _composed(self.values, after.values),
            _composed(self.operations, after.operations),
            after.changed | moved,
        )


Pass = Callable[[Program], Rewritten]
"""Changes a program; returns the new one with maps."""


def unchanged(program: Program) -> Rewritten:
    """Returns a program as no pass leaves it: every map is the identity."""
    values, operations = range(len(program.values)), range(len(program.operations))
    same = {v: v for v in values}, {op: op for op in operations}
    return Rewritten(program, *same, frozenset())


def run(program: Program, passes: Iterable[Pass]) -> Rewritten:
    """Runs passes in order, each on the result of those before it."""
    found = unchanged(program)
    for each in passes:
        found = found.then(each)
    return found


def _composed(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    return {old: second[new] for old, new in first.items() if new in second}
