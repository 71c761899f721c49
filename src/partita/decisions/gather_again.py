"""`GatherAgain`: between which uses of values their gathered copies are dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from partita.analysis import Between
from partita.decisions.decision import Decision
from partita.decisions.references import Value
from partita.decisions.stage import Stage

Uses = Literal["none", "far", "all", "iterations", "each"]
"""Names of `partita.analysis.Between` in files."""


class GatherAgain(Decision, frozen=True, tag="gather_again"):
    """Values whose gathered copies are dropped between uses, and gathered again.

    Where nothing is decided of a value, the cost model chooses, by what memory there is; what it
    has chosen is such a decision, too.
    """

    values: tuple[Value, ...]
    between: Uses
    """`none` keeps one copy from the first use to the last; `far` drops it between uses that are
    far apart, as those of a forward and a backward pass are; `all` between any two.

    These gather ahead of loops for the uses inside. `iterations` gathers in each iteration, and in
    it again for uses far apart; `each` in each iteration, for every use."""

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage in which this is decided."""
        return stage.gathering(self.values, Between[self.between.upper()])

    def describe(self, stage: Stage) -> str:
        """Returns it in words."""
        told = {
            "none": "keeps what is gathered of",
            "far": "gathers again, for uses far apart,",
            "all": "gathers again, for every use,",
            "iterations": "gathers in each iteration of loops",
            "each": "gathers in each iteration of loops, for every use,",
        }
        program = stage.context.analysis.program
        return f"{told[self.between]} {', '.join(map(program.describe, self.values))}"


def gathers(between: Iterable[tuple[int, int]]) -> tuple[GatherAgain, ...]:
    """Returns the decisions of `(value, Between)` pairs."""
    pairs = sorted(between)
    names: tuple[Uses, ...] = get_args(Uses)
    found = {name: tuple(v for v, b in pairs if b == n) for n, name in enumerate(names)}
    return tuple(GatherAgain(values, name) for name, values in found.items() if values)
