"""`Action`: where a decision puts an axis before it propagates from there, for reports."""

from __future__ import annotations

import dataclasses
from typing import Any

from partita.escape import printed


@dataclasses.dataclass(frozen=True)
class Action:
    """One tile action: where a tactic put an axis, before it propagates from there."""

    axis: str
    what: str
    """Description: the dimensions named, or the color."""
    seeds: tuple[tuple[int, int], ...] = ()
    """The `(value, dimension)` pairs that it started from."""
    color: int | None = None
    """The color group that was tiled as a whole, if it was one."""
    request: str = ""
    """Request of the user that it comes from, if any: a pattern, or the name of an axis.
    Several actions can come of one request."""
    move: Any = dataclasses.field(default=None, repr=False)
    """The decision of a search that it is of, a `partita.decisions.Decision`."""

    @printed
    def __str__(self) -> str:
        return f"{self.what} -> {self.axis}"
