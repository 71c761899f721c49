"""What lies in memory when it is fullest, and over the whole step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.table import Table

from partita.analysis.purpose import purposes
from partita.cost.memory import MemoryModel
from partita.cost.timing import Timing
from partita.errors import FileError
from partita.spmd import Lowering
from partita.text import size

KINDS = (
    "parameters",
    "optimizer state",
    "inputs",
    "constants",
    "activations",
    "gradients",
    "gathered copies",
    "other",
)
"""What memory is used for, in the order in which it is shown."""

_OTHER = {"updates": "other"}


@dataclasses.dataclass(frozen=True)
class Alive:
    """Values that are alike and alive at the peak."""

    value: str
    """The first of them, in the user's words."""
    source: str
    """The user's line that makes it, `file:line`; empty for arguments."""
    kind: str
    """What it is for, one of `KINDS`."""
    bytes: int
    """Of all of them together, per device."""
    count: int
    """How many they are."""

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{size(self.bytes)}  {self.kind}: {self.value}{more}"


@dataclasses.dataclass(frozen=True, eq=False)
class Footprint:
    """Memory of a plan over one step, per device."""

    peak: int
    """Bytes at the fullest moment."""
    at: int
    """When that is: the position in the order in which kernels run."""
    where: str
    """The operation that runs then, in the user's words."""
    breakdown: Mapping[str, int]
    """Bytes at the peak by what they are for (`KINDS`)."""
    alive: tuple[Alive, ...]
    """What is alive at the peak, the largest first."""
    timeline: Mapping[str, np.ndarray]
    """Bytes at every position, by what they are for."""
    capacity: int
    """Bytes that the plan may use."""

    def table(self, most: int = 20) -> Table:
        """The breakdown and the largest values at the peak, for a terminal."""
        title = (
            f"Memory at its fullest: {size(self.peak)} of {size(self.capacity)}, at {self.where}"
        )
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("what")
        table.add_column("bytes", justify="right")
        for kind in KINDS:
            if not self.breakdown.get(kind):
                continue
            table.add_row(kind, size(self.breakdown[kind]), style="bold")
            rows = [item for item in self.alive[:most] if item.kind == kind]
            for item in rows:
                times = f" x{item.count}" if item.count > 1 else ""
                table.add_row(f"  {item.value}{times}", size(item.bytes))
        return table

    def picture(self, path: str | Path) -> None:
        """Draws memory over the step, by what it is for, to a file (`.svg`, `.png`, `.pdf`).

        Needs the extra `partita[plots]`.

        Raises:
          FileError: the file cannot be written, or matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise FileError("a picture needs matplotlib: pip install 'partita[plots]'") from error
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.add_subplot()
        shown = [kind for kind in KINDS if self.timeline[kind].any()]
        layers = [self.timeline[kind] / 2**30 for kind in shown]
        axes.stackplot(
            np.arange(len(layers[0]) if layers else 0), layers, labels=shown, step="post"
        )
        axes.axvline(self.at, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlabel("kernels, in the order in which they run")
        axes.set_ylabel("GiB per device")
        axes.legend(loc="upper left", fontsize="small")
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise FileError(f"cannot write the picture {str(path)!r}: {error}") from error

    def __str__(self) -> str:
        lines = [f"peak {size(self.peak)} of {size(self.capacity)}, at {self.where}"]
        lines += [f"  {kind}: {size(bytes_)}" for kind, bytes_ in self.breakdown.items() if bytes_]
        lines += [f"  {item}" for item in self.alive[:20]]
        return "\n".join(lines)


def footprint(
    lowering: Lowering, memory: MemoryModel, timing: Timing, regather: bool, capacity: int
) -> Footprint:
    """What lies in memory over the step of a lowering.

    Args:
      lowering: of a program.
      memory: the memory model of its class graph.
      timing: of the program.
      regather: whether gathered copies are gathered again for uses far apart.
      capacity: bytes that may be used.
    """
    graph = lowering.graph
    program = graph.program
    meant = [_OTHER.get(p, p) for p in purposes(program, timing.analysis.uses)]
    kept = np.array([memory.bytes(v.index, lowering.plans[v.index].layout) for v in graph.values])
    rows = _Rows(memory.steps)
    for value in program.arguments:
        rows.add(graph.value_class[value], meant[value], 0, memory.steps, kept)
    for value, birth, death in timing.lifetimes.tolist():
        rows.add(graph.value_class[value], meant[value], birth, death, kept)
    for index, plan in enumerate(lowering.plans):
        for copies in memory.copies(index, plan, regather):
            spans = zip(copies.start.tolist(), copies.end.tolist(), strict=True)
            for start, end in spans:
                rows.add(index, "gathered copies", start, end, copies.bytes)
    if memory.constants:
        rows.constant(memory.constants)
    timeline = rows.timeline()
    total = np.sum(list(timeline.values()), axis=0)
    at = int(np.argmax(total))
    alive = [
        Alive(
            program.describe(graph.values[index].value.index),
            _source(lowering, index),
            kind,
            round(bytes_),
            count,
        )
        for (index, kind), (bytes_, count) in rows.alive(at).items()
    ]
    kernel = next((op for op, place in timing.fusion.order.items() if place == at), None)
    return Footprint(
        peak=round(float(total[at])),
        at=at,
        where=_where(lowering, kernel),
        breakdown={kind: round(float(timeline[kind][at])) for kind in KINDS},
        alive=tuple(sorted(alive, key=lambda item: -item.bytes)),
        timeline=timeline,
        capacity=capacity,
    )


class _Rows:
    """Buffers of a step: value class, what for, first and last position, bytes."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.spans: list[tuple[int, str, int, int, float]] = []
        self.base = dict.fromkeys(KINDS, 0.0)

    def add(self, index: int, kind: str, start: int, end: int, bytes_: np.ndarray | float) -> None:
        """Adds a buffer; `bytes_` are its own, or those of every value class."""
        own = float(bytes_[index]) if isinstance(bytes_, np.ndarray) else bytes_
        if own:
            self.spans.append((index, kind, start, end, own))

    def constant(self, bytes_: float) -> None:
        """Constants, alive all the time."""
        self.base["constants"] += bytes_

    def timeline(self) -> dict[str, np.ndarray]:
        """Bytes at every position, by kind."""
        found = {}
        for kind in KINDS:
            delta = np.zeros(self.steps + 2)
            for _, own, start, end, bytes_ in self.spans:
                if own == kind:
                    delta[start] += bytes_
                    delta[min(end, self.steps) + 1] -= bytes_
            found[kind] = np.cumsum(delta)[: self.steps + 1] + self.base[kind]
        return found

    def alive(self, at: int) -> dict[tuple[int, str], tuple[float, int]]:
        """Bytes and number of the buffers alive at a position, by value class and kind."""
        found: dict[tuple[int, str], tuple[float, int]] = {}
        for index, kind, start, end, bytes_ in self.spans:
            if start <= at <= end:
                total, count = found.get((index, kind), (0.0, 0))
                found[index, kind] = total + bytes_, count + 1
        return found


def _source(lowering: Lowering, index: int) -> str:
    producer = lowering.graph.values[index].value.producer
    return "" if producer is None else lowering.graph.program.operations[producer].source


def _where(lowering: Lowering, kernel: int | None) -> str:
    if kernel is None:
        return "the end of the step"
    op = lowering.graph.program.operations[kernel]
    return f"{op.title} at {op.source}" if op.source else op.title
