"""The tile action: one decision of a partitioning."""

from __future__ import annotations

import dataclasses

EVERY_COLOR = -1
"""Stands for all color groups, those with more data first."""


@dataclasses.dataclass(frozen=True, order=True)
class TileAction:
    """Tile a color group along an axis, with a role for each group of conflict sets it meets.

    `EVERY_COLOR` tiles what can still take the axis once others have it: after the examples have
    it, say, parameters and optimizer state.

    `without` leaves out parts (by number): the connected sets of operations and values into which
    the action falls where earlier ones are in the way. With `sums` false, operations that sum over
    the color are left out: instead of leaving unreduced results, they get their operands gathered,
    or exchanged for a dimension that another action gives them.
    """

    color: int
    """The color group, or `EVERY_COLOR`."""
    axis: int
    """Position of the axis in the mesh."""
    roles: tuple[tuple[int, int], ...] = ()
    """`(group of conflict sets, role group)` pairs: the role that gets the axis."""
    without: tuple[int, ...] = ()
    sums: bool = True
