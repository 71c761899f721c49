"""Plans side by side: their cost, their collectives, and the shardings that differ.

Works for plan files as well as for plans in memory. Meshes, device types and tactics may differ.
Arguments that only some plans have show no sharding in the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType

from partita.cost import Traffic
from partita.planning.diff import COSTS, relative_change
from partita.planning.schedule import Scheduled
from partita.program.names import grouped
from partita.report.collect import estimate_data
from partita.report.data import Entries, EstimateData, listed
from partita.saved.restore import estimate_of, read_plan
from partita.saved.schema import Entry
from partita.text import Text, new_table, seconds, show_entries, times
from partita.tiling import spec

FIGURES = (("step_time", "step time", seconds), *COSTS[1:])
"""The figures that are compared: name, label, and how to show it."""


@dataclasses.dataclass(frozen=True)
class SideData:
    """One of the plans."""

    name: str
    program: str
    mesh: dict[str, int]
    hardware: str
    tactics: list[str]
    estimate: EstimateData


@dataclasses.dataclass(frozen=True)
class ExchangeData:
    """Collectives of one kind over the same axes: of each plan, count, bytes and seconds."""

    kind: str
    axes: list[str]
    count: list[int]
    bytes: list[int]
    seconds: list[float]


@dataclasses.dataclass(frozen=True)
class SplitData:
    """Arguments or results with equal shardings: the sharding in each plan; None where absent."""

    name: str
    count: int
    type: str
    shardings: list[Entries | None]


@dataclasses.dataclass(frozen=True)
class ComparisonData:
    """Plans side by side."""

    plans: list[SideData]
    collectives: list[ExchangeData]
    shardings: list[SplitData]
    """Arguments and results whose shardings differ."""


@dataclasses.dataclass(frozen=True)
class Side:
    """A plan to compare: its data, and the sharding of every argument and result."""

    data: SideData
    traffic: Mapping[tuple[str, tuple[str, ...]], Traffic]
    tensors: Mapping[str, tuple[str, tuple[Entry, ...]]]
    """Type and sharding, by name."""


def side_of_plan(name: str, plan: Scheduled) -> Side:
    """A plan that is at hand."""
    program, spmd = plan.program, plan.spmd
    kinds = (
        ("argument", program.argument_names, program.arguments, spmd.argument_layouts),
        ("result", program.result_names, program.results, spmd.result_layouts),
    )
    tensors = {
        f"{kind} {label}": (str(program.values[value].type), tuple(spec(layout, plan.mesh)))
        for kind, labels, values, layouts in kinds
        for label, value, layout in zip(labels, values, layouts, strict=True)
    }
    tactics = [entry.name for entry in plan.history]
    estimate = estimate_data(plan.estimate)
    target = program.name, dict(plan.mesh), plan.hardware.name
    data = SideData(name, *target, tactics, estimate)
    return Side(data, plan.estimate.traffic, tensors)


def side_of_file(path: str | Path, name: str = "") -> Side:
    """Reads a plan file as a side to compare; no program is needed.

    Raises:
      FileError: it cannot be read.
    """
    table = read_plan(path).table
    estimate = estimate_of(table.estimate)
    kinds = (("argument", table.program.arguments), ("result", table.program.results))
    tensors = {
        f"{kind} {each.name}": (each.type, tuple(each.sharding))
        for kind, found in kinds
        for each in found
    }
    data = SideData(
        name or str(path),
        table.program.name,
        dict(table.mesh),
        table.hardware,
        [entry.name for entry in table.history],
        estimate_data(estimate),
    )
    return Side(data, estimate.traffic, tensors)


def comparison(sides: Sequence[Side]) -> ComparisonData:
    """Plans side by side."""
    none, collectives = Traffic(0, 0, 0.0), []
    for kind, axes in sorted({key for side in sides for key in side.traffic}):
        found = [side.traffic.get((kind, axes), none) for side in sides]
        counts, sizes = [each.count for each in found], [each.bytes for each in found]
        times_ = [each.seconds for each in found]
        collectives.append(ExchangeData(kind, list(axes), counts, sizes, times_))
    shardings = [
        SplitData(name, count, types, [None if each is None else listed(each) for each in split])
        for name, count, (types, split) in grouped(_differing(sides))
    ]
    return ComparisonData([side.data for side in sides], collectives, shardings)


_Split = tuple[tuple[Entry, ...] | None, ...]


def _differing(sides: Sequence[Side]) -> Iterator[tuple[str, tuple[str, _Split]]]:
    """Yields arguments and results whose shardings differ between plans, with their types."""
    for name in dict.fromkeys(name for side in sides for name in side.tensors):
        found = [side.tensors.get(name) for side in sides]
        split = tuple(each[1] if each else None for each in found)
        if len(set(split)) > 1:
            yield name, (" or ".join(dict.fromkeys(each[0] for each in found if each)), split)


def shown(entries: Entries | None) -> str:
    """A sharding of a comparison as text."""
    return "not there" if entries is None else show_entries(entries)


def view(found: ComparisonData) -> RenderableType:
    """A comparison as something that rich can print: two plans by figures, more as one table."""
    return _two(found) if len(found.plans) == 2 else _many(found)


def _two(found: ComparisonData) -> RenderableType:
    names = [side.name for side in found.plans]
    costs = new_table("Cost of a step, per device", "what", *names, "change")
    for label, told in (("mesh", _mesh), ("hardware", lambda side: side.hardware)):
        costs.add_row(label, *map(told, found.plans), "")
    for key, label, show in FIGURES:
        values = [getattr(side.estimate, key) for side in found.plans]
        costs.add_row(label, *map(show, values), relative_change(values))
    costs.add_row("fits", *("yes" if s.estimate.fits else "NO" for s in found.plans), "")
    parts: list[RenderableType] = [costs]
    if found.collectives:
        table = new_table("Collectives: count, time", "kind", "axes", *names, "change")
        for each in found.collectives:
            figures = (f"{n}, {seconds(t)}" for n, t in zip(each.count, each.seconds, strict=True))
            table.add_row(each.kind, ", ".join(each.axes), *figures, relative_change(each.seconds))
        parts += [Text(), table]
    if found.shardings:
        table = new_table("Sharded otherwise", "value", "type", *names)
        for split in found.shardings:
            row = map(shown, split.shardings)
            table.add_row(split.name + times(split.count), split.type, *row)
        parts += [Text(), table]
    else:
        parts += [Text(), Text("Arguments and results are sharded alike.")]
    return Group(*parts)


def _mesh(side: SideData) -> str:
    return ",".join(f"{axis}={number}" for axis, number in side.mesh.items())


def _many(found: ComparisonData) -> RenderableType:
    columns = [
        "plan",
        "step time",
        "compute",
        "exposed",
        "hidden",
        "peak memory",
        "collectives",
        "",
    ]
    table = new_table("Plans, best first", *columns)
    for number, side in enumerate(found.plans):
        e = side.estimate
        counts = sum(each.count[number] for each in found.collectives)
        figures = [getattr(e, key) for key, _, _ in FIGURES[:5]]
        row = [show(v) for v, (_, _, show) in zip(figures, FIGURES, strict=False)]
        table.add_row(side.name, *row, str(counts), "" if e.fits else "DOES NOT FIT")
    return table


def best_first(sides: Sequence[Side]) -> list[Side]:
    """Sorts plans: those that fit by time, then the others by peak memory."""

    def rank(side: Side) -> tuple[bool, float]:
        e = side.data.estimate
        return not e.fits, e.step_time if e.fits else float(e.peak_memory)

    return sorted(sides, key=rank)
