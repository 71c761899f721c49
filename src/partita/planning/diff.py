"""Two plans of one program, side by side: what differs in cost, collectives and shardings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType

from partita.cost import Traffic
from partita.errors import TacticError
from partita.escape import printed
from partita.planning.schedule import Scheduled
from partita.program import Program
from partita.program.names import grouped
from partita.text import Text, new_table, plain, seconds, show_entries, size, times
from partita.tiling import entries

Entries = tuple[str | tuple[str, ...] | None, ...]
"""A sharding as the entries of a `PartitionSpec`."""

COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step_time", "step time (overlapped)", seconds),
    ("compute_time", "  compute", seconds),
    ("exposed_time", "  collectives, exposed", seconds),
    ("hidden_time", "  collectives, hidden", seconds),
    ("peak_memory", "peak memory", size),
    ("argument_memory", "  of which arguments", size),
)
"""The members of an `Estimate` that are compared: name, label, and how to show it."""

MOST_DIFFERENCES = 4
"""Differences between two programs that an error names."""


@dataclasses.dataclass(frozen=True)
class CostChange:
    """One figure of the estimate; seconds, or bytes per device."""

    name: str
    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class TrafficChange:
    """All collectives of one kind over the same axes; None where there are none."""

    kind: str
    axes: tuple[str, ...]
    before: Traffic | None
    after: Traffic | None


@dataclasses.dataclass(frozen=True)
class ShardingChange:
    """Values that are sharded otherwise: arguments, results and tagged values, alike ones once."""

    name: str
    count: int
    type: str
    before: Entries
    after: Entries


@dataclasses.dataclass(frozen=True, repr=False)
class PlanDiff:
    """Differences between two plans of one program. Each pair is (before, after)."""

    mesh: tuple[str, str]
    hardware: tuple[str, str]
    tactics: tuple[tuple[str, ...], tuple[str, ...]]
    """The names of the tactics, in order."""
    fits: tuple[bool, bool]
    costs: tuple[CostChange, ...]
    """Figures of the estimate, those that are equal too."""
    collectives: tuple[TrafficChange, ...]
    """Changes of traffic by kind and axes; equal ones are included."""
    shardings: tuple[ShardingChange, ...]
    """Arguments, results and tagged values whose sharding differs."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data that JSON can hold."""
        return dataclasses.asdict(self)

    @printed
    def __str__(self) -> str:
        return plain(Group(*self._parts()))

    @printed
    def __repr__(self) -> str:
        changes = {change.name: change for change in self.costs}
        step, peak = changes["step_time"], changes["peak_memory"]
        return (
            f"<PlanDiff: step {_arrow(seconds(step.before), seconds(step.after))}, "
            f"peak {_arrow(size(peak.before), size(peak.after))}, "
            f"{len(self.shardings)} shardings differ>"
        )

    def _parts(self) -> Iterator[RenderableType]:
        for label, (before, after) in (("mesh", self.mesh), ("hardware", self.hardware)):
            yield Text(f"{label} {_arrow(before, after)}")
        yield from self._tactics()
        yield Text()
        yield self._costs()
        if self.collectives:
            yield Text()
            yield self._collectives()
        yield Text()
        yield self._shardings()
        for fits, which in zip(self.fits, ("before", "after"), strict=True):
            if not fits:
                yield from (Text(), Text(f"DOES NOT FIT: the plan {which}"))

    def _tactics(self) -> Iterator[Text]:
        before, after = self.tactics
        if before == after:
            yield Text("the same tactics")
            return
        common = 0
        while common < min(len(before), len(after)) and before[common] == after[common]:
            common += 1
        yield from (Text(f"  {name}") for name in before[:common])
        yield from (Text(f"- {name}") for name in before[common:])
        yield from (Text(f"+ {name}") for name in after[common:])

    def _costs(self) -> RenderableType:
        table = new_table("Cost of a step, per device", "what", "before", "after", "change")
        for change, (_, label, show) in zip(self.costs, COSTS, strict=True):
            both = change.before, change.after
            table.add_row(label, *map(show, both), relative_change(both))
        return table

    def _collectives(self) -> RenderableType:
        table = new_table("Collectives", "kind", "axes", "count", "bytes per device", "time")
        none = Traffic(0, 0, 0.0)
        for change in self.collectives:
            before, after = change.before or none, change.after or none
            table.add_row(
                change.kind,
                ", ".join(change.axes),
                _arrow(str(before.count), str(after.count)),
                _arrow(size(before.bytes), size(after.bytes)),
                _arrow(seconds(before.seconds), seconds(after.seconds)),
            )
        return table

    def _shardings(self) -> RenderableType:
        if not self.shardings:
            return Text("Arguments, results and tagged values are sharded alike.")
        table = new_table("Split otherwise", "value", "type", "before", "after")
        for change in self.shardings:
            before, after = show_entries(change.before), show_entries(change.after)
            table.add_row(change.name + times(change.count), change.type, before, after)
        return table


def relative_change(values: Sequence[float]) -> str:
    """Returns the relative change from the first of two values to the second; empty for other
    counts."""
    if len(values) != 2 or values[0] == values[1] or not values[0]:
        return ""
    return f"{values[1] / values[0] - 1:+.1%}"


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def diff(before: Scheduled, after: Scheduled) -> PlanDiff:
    """Compares two plans of one program; meshes and hardware may differ.

    Raises:
      TacticError: the programs differ in their arguments or results.
    """
    _same_program(before, after)
    both = (before, after)
    estimates = (before.estimate, after.estimate)
    kinds = sorted({*before.estimate.traffic, *after.estimate.traffic})
    return PlanDiff(
        mesh=_pair(str(done.mesh) for done in both),
        hardware=_pair(done.hardware.name for done in both),
        tactics=_pair(tuple(entry.name for entry in done.history) for done in both),
        fits=_pair(estimate.fits for estimate in estimates),
        costs=tuple(
            CostChange(name, *(getattr(estimate, name) for estimate in estimates))
            for name, _, _ in COSTS
        ),
        collectives=tuple(
            TrafficChange(*key, *(estimate.traffic.get(key) for estimate in estimates))
            for key in kinds
        ),
        shardings=tuple(_shardings(before, after)),
    )


def _pair(items: Iterator[Any]) -> Any:
    first, second = items
    return first, second


def _signature(program: Program) -> dict[str, str]:
    """The types of arguments and results, by name."""
    sides = (
        ("argument", program.argument_names, program.arguments),
        ("result", program.result_names, program.results),
    )
    found = {
        f"{side} {name!r}": str(program.values[value].type)
        for side, names, values in sides
        for name, value in zip(names, values, strict=True)
    }
    tags = Counter(tag for tag, _ in program.tagged)
    return found | {f"tag {tag!r}": f"on {count} values" for tag, count in tags.items()}


def _same_program(before: Scheduled, after: Scheduled) -> None:
    programs = before.program, after.program
    ours, theirs = map(_signature, programs)
    differences = [
        f"{name} is {ours.get(name, 'missing')} in one and {theirs.get(name, 'missing')} in the "
        "other"
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    ]
    if differences:
        shown = "; ".join(differences[:MOST_DIFFERENCES])
        more = len(differences) - MOST_DIFFERENCES
        rest = f"; and {more} more" if more > 0 else ""
        names = " and ".join(program.name for program in programs)
        raise TacticError(
            f"plans of different programs ({names}) cannot be compared: {shown}{rest}; plan the "
            "same function with arguments of the same shapes"
        )


def _shardings(before: Scheduled, after: Scheduled) -> Iterator[ShardingChange]:
    """Named values whose sharding differs, alike ones once."""
    pairs = zip(_values(before), _values(after), strict=True)
    differ = (
        (name, (type_, ours, theirs))
        for (name, type_, ours), (_, _, theirs) in pairs
        if ours != theirs
    )
    for name, count, told in grouped(differ):
        yield ShardingChange(name, count, *told)


def _values(done: Scheduled) -> Iterator[tuple[str, str, Entries]]:
    """Everything that users can name, in the order of the program: name, type and sharding."""
    program, mesh, lowering = done.program, done.mesh, done.lowering
    for name, value in (
        *zip(program.argument_names, program.arguments, strict=True),
        *zip(program.result_names, program.results, strict=True),
        *program.tagged,
    ):
        layout = lowering.plans[lowering.graph.value_class[value]].layout
        yield name, str(program.values[value].type), entries(layout, mesh)
