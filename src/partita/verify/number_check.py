"""Results of a plan next to those of the original function, and the report of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rich.console import Group, RenderableType

from partita.escape import printed
from partita.mesh import Mesh
from partita.text import Text, new_table, plain
from partita.verify.rounding import SHAKEN


@dataclasses.dataclass(frozen=True)
class NumberRow:
    """One result of the plan next to the same of the original."""

    name: str
    """The result by its path in the pytree that the function returns."""
    dtype: str
    shape: tuple[int, ...]
    difference: float
    """Largest difference, relative to the largest finite element of the original; infinite where
    integers or non-finite elements differ."""
    largest: float
    """The largest finite element of the original."""
    tolerance: float
    """The largest difference that rounding explains, by types and number of roundings."""
    rounding: float | None
    """Measured effect of rounding on the original; None where the difference is within the
    tolerance anyway."""
    finite: bool
    """True if the original's elements are all finite."""

    @property
    def ok(self) -> bool:
        """True if rounding explains the difference."""
        if self.difference <= self.tolerance:
            return True
        return self.rounding is not None and self.difference <= SHAKEN * self.rounding


@dataclasses.dataclass(frozen=True)
class Origin:
    """The first value in program order that differs by more than rounding can do."""

    what: str
    """Producer of the value: an operation, a loop, or a collective; with the source line."""
    value: str
    """The value, as `print(plan.program)` shows it."""
    difference: float
    tolerance: float


@dataclasses.dataclass(frozen=True, repr=False)
class NumberCheck:
    """A plan's results next to those of the original function; printed, a report.

    Made by `Plan.check_numbers`.
    """

    name: str
    """The function."""
    mesh: Mesh
    arguments: str
    """Description of the arguments that both were run with."""
    rows: tuple[NumberRow, ...]
    origin: Origin | None
    """Value where a difference begins; None if there is none, or it was not found."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if rounding explains all differences, those of intermediate values included."""
        return self.origin is None and all(row.ok for row in self.rows)

    @printed
    def __str__(self) -> str:
        return plain(self.view())

    @printed
    def __repr__(self) -> str:
        wrong = sum(not row.ok for row in self.rows)
        found = f"{wrong} of {len(self.rows)} results differ" if wrong else "no result differs"
        found += "" if self.origin is None else f", from {self.origin.what} on"
        return f"<NumberCheck of {self.name} on {self.mesh}: {found}>"

    def view(self) -> RenderableType:
        """The report as something that rich can print."""
        title = f"{self.name} on mesh {self.mesh}, next to the original, on host devices"
        table = new_table("Largest difference", "result", "type", "difference", "tolerance", "")
        for row in self.rows:
            shape = ",".join(map(str, row.shape))
            table.add_row(
                row.name,
                f"{row.dtype}[{shape}]",
                _figure(row.difference),
                _figure(row.tolerance) if row.tolerance else "exact",
                _remark(row),
                style="" if row.ok else "bold red",
            )
        lines = [Text(), *(Text(note) for note in self.notes)]
        if self.ok:
            lines.append(Text("The same numbers, but for rounding."))
        wrong = sum(not row.ok for row in self.rows)
        if wrong:
            lines.append(Text(f"DIFFERS: {wrong} of {len(self.rows)} results", style="bold red"))
        if (origin := self.origin) is not None:
            apart, allowed = _figure(origin.difference), _figure(origin.tolerance)
            text = f"It begins at {origin.what}: {apart} apart, tolerance {allowed}"
            text += "" if wrong else "; no result shows it with these arguments"
            lines.append(Text(f"DIFFERS: {text}" if not wrong else text, style="bold red"))
        return Group(Text(title, style="bold"), Text(self.arguments), Text(), table, *lines)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as data for JSON; infinite differences are null."""
        return {
            "program": self.name,
            "mesh": dict(self.mesh),
            "arguments": self.arguments,
            "ok": self.ok,
            "results": [
                {
                    **dataclasses.asdict(row),
                    "shape": list(row.shape),
                    "difference": _finite(row.difference),
                    "rounding": None if row.rounding is None else _finite(row.rounding),
                    "ok": row.ok,
                }
                for row in self.rows
            ],
            "origin": None
            if self.origin is None
            else {
                **dataclasses.asdict(self.origin),
                "difference": _finite(self.origin.difference),
            },
            "notes": list(self.notes),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _figure(value: float) -> str:
    return "other elements" if math.isinf(value) else f"{value:.1e}" if value else "0"


def _remark(row: NumberRow) -> str:
    if not row.ok:
        return "DIFFERS"
    if row.difference > row.tolerance:
        return "rounding moves the original as far"
    return "" if row.finite else "not all finite"
