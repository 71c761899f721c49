"""`ShardColor`: a color group takes an axis, wherever it can."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from partita.decisions.action import Action
from partita.decisions.decision import Change, Decision
from partita.decisions.references import Axis, Color, Resolved
from partita.decisions.stage import Stage
from partita.tiling import Propagation, Propagator, Tiling

EVERY_COLOR = -1
"""Stands for all color groups, those with more data first."""


class ShardColor(Decision, frozen=True, order=True, omit_defaults=True, tag="shard_color"):
    """Shards a color group along an axis, with a role for each group of conflict sets it meets.

    With `EVERY_COLOR`, it shards what can still take the axis once others have it: after the
    examples have it, say, parameters and optimizer state.

    `without` leaves out parts (by number): the connected sets of operations and values into which
    it falls where earlier decisions are in the way. With `sums` false, operations that sum over the
    color are left out: instead of leaving unreduced results, they get their operands gathered, or
    exchanged for a dimension that another decision gives them.
    """

    color: Color
    """The color group, or `EVERY_COLOR`."""
    axis: Axis
    roles: tuple[Resolved, ...] = ()
    without: tuple[int, ...] = ()
    sums: bool = True

    @property
    def over_classes(self) -> bool:
        """True if it is applied to classes."""
        return True

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """Returns what of the group takes the axis."""
        propagation = self.whole(propagator, tiling)
        if not self.without and self.sums:
            return propagation
        return propagator.some(tiling, propagation, self.axis, self.without, self.sums)

    def whole(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """Returns what would take the axis if nothing were left out."""
        if self.color == EVERY_COLOR:
            return propagator.tile_every(tiling, self.axis, frozenset(r for _, r in self.roles))
        return propagator.tile_color(tiling, self.color, self.axis, dict(self.roles))

    def changed(self, change: Change) -> Decision | None:
        """Returns it with its conflicts resolved as a change says."""
        if self in change.without_decisions:
            return None
        return msgspec.structs.replace(self, roles=change.resolved(self.axis, self.roles))

    def actions(self, stage: Stage) -> Iterator[Action]:
        """Returns the axis that the color takes."""
        axis = stage.context.mesh.names[self.axis]
        yield Action(axis, self._name(stage), color=self.color, move=self)

    def describe(self, stage: Stage) -> str:
        """Returns it in words."""
        colors, groups = stage.context.colors, stage.context.analysis.groups.conflict_groups
        text = f"{self._name(stage)} -> {stage.context.mesh.names[self.axis]}"
        for conflict, role in self.roles:
            text += f", given to {colors.conflicts[conflict].roles[groups[conflict].index(role)]}"
        if not self.sums:
            text += " (but for sums over it)"
        if self.without:
            parts = ", ".join(map(str, self.without))
            text += f" (without part{'s' if len(self.without) > 1 else ''} {parts})"
        return text

    def _name(self, stage: Stage) -> str:
        return "all else" if self.color == EVERY_COLOR else stage.context.colors.name(self.color)
