"""Memory contents at the peak, and over the whole step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from partita.analysis import Between, ClassGraph
from partita.analysis.purpose import purposes
from partita.cost.kernels.timing import Timing
from partita.cost.memory.model import Copies, MemoryModel, changes, joined
from partita.errors import FileError
from partita.escape import printed
from partita.spmd import Lowering
from partita.text import Table, new_table, size, times

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
"""Purposes of memory, in the order in which they are shown."""

_OTHER = {"updates": "other"}


@dataclasses.dataclass(frozen=True)
class Alive:
    """Values that are alike and alive at the peak."""

    value: str
    """The first of them, in the user's words."""
    source: str
    """The user's line that makes it, `file:line`; empty for arguments."""
    kind: str
    """Purpose of the values, one of `KINDS`."""
    bytes: int
    """Bytes of all of them together, per device."""
    count: int
    """Number of values."""

    @printed
    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{size(self.bytes)}  {self.kind}: {self.value}{more}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Footprint:
    """Memory of a plan over one step, per device. `print(footprint)` shows its fullest moment."""

    peak: int
    """Bytes at the fullest moment."""
    at: int
    """Position of the peak in the order in which kernels run."""
    where: str
    """The operation that runs then, in the user's words."""
    breakdown: Mapping[str, int]
    """Bytes at the peak by purpose (`KINDS`)."""
    alive: tuple[Alive, ...]
    """Values alive at the peak, the largest first."""
    timeline: Mapping[str, np.ndarray]
    """Bytes at every position, by purpose."""
    capacity: int
    """Bytes that the plan may use."""

    def table(self, most: int = 20) -> Table:
        """Returns the breakdown and the largest values at the peak, for a terminal."""
        title = (
            f"Memory at its fullest: {size(self.peak)} of {size(self.capacity)}, at {self.where}"
        )
        table = new_table(title, "what", "bytes")
        for kind in KINDS:
            if not self.breakdown.get(kind):
                continue
            table.add_row(kind, size(self.breakdown[kind]), style="bold")
            rows = [item for item in self.alive[:most] if item.kind == kind]
            for item in rows:
                table.add_row(f"  {item.value}{times(item.count)}", size(item.bytes))
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

    @printed
    def __repr__(self) -> str:
        return f"<Footprint: peak {size(self.peak)} of {size(self.capacity)}>"

    @printed
    def __str__(self) -> str:
        lines = [f"peak {size(self.peak)} of {size(self.capacity)}, at {self.where}"]
        lines += [f"  {kind}: {size(bytes_)}" for kind, bytes_ in self.breakdown.items() if bytes_]
        lines += [f"  {item}" for item in self.alive[:20]]
        return "\n".join(lines)


def footprint(lowering: Lowering, memory: MemoryModel, timing: Timing, capacity: int) -> Footprint:
    """Returns the memory contents over the step of a lowering.

    Args:
      lowering: of a program.
      memory: the memory model of its class graph.
      timing: of the program.
      capacity: bytes that may be used.
    """
    graph = lowering.graph
    program = graph.program
    meant = [_OTHER.get(p, p) for p in purposes(program, timing.analysis.uses)]
    kept = np.array([memory.bytes(v.index, lowering.plans[v.index].layout) for v in graph.values])
    copies = [
        (index, each)
        for index, plan in enumerate(lowering.plans)
        for each in memory.copies(index, plan, lowering.regathered.get(index, Between.NONE))
    ]
    copied = np.zeros(memory.size)
    if copies:
        copied = changes(*joined([each for _, each in copies]), memory.size)
    live = memory.live(kept, copied)
    total = live + (memory.arguments(kept) + memory.constants)
    at = int(np.argmax(total))
    buffers = list(_buffers(graph, meant, memory, timing, kept, copies))
    timeline = {
        kind: _over_time([b for b in buffers if b.kind == kind], memory.size) for kind in KINDS
    }
    timeline["constants"] += memory.constants
    kernel = next((op for op, place in timing.fusion.order.items() if place == at), None)
    return Footprint(
        peak=round(float(total[at])),
        at=at,
        where=_where(lowering, kernel),
        breakdown={kind: round(float(timeline[kind][at])) for kind in KINDS},
        alive=_alive(lowering, [b for b in buffers if b.start <= at <= b.end]),
        timeline=timeline,
        capacity=capacity,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer of a step: the value class, what it is for, and when it is there."""

    index: int
    kind: str
    start: int
    end: int
    bytes: float


def _buffers(
    graph: ClassGraph,
    meant: Sequence[str],
    memory: MemoryModel,
    timing: Timing,
    kept: np.ndarray,
    copies: Sequence[tuple[int, Copies]],
) -> Iterator[_Buffer]:
    """Yields all buffers except those of constants."""
    arguments = ((v, 0, memory.size - 1) for v in graph.program.arguments)
    for value, start, end in (*arguments, *timing.lifetimes.tolist()):
        index = graph.value_class[value]
        if kept[index]:
            yield _Buffer(index, meant[value], start, end, float(kept[index]))
    for index, each in copies:
        for start, end in zip(each.start.tolist(), each.end.tolist(), strict=True):
            yield _Buffer(index, "gathered copies", start, end, each.bytes)


def _over_time(buffers: Sequence[_Buffer], size: int) -> np.ndarray:
    """Bytes of buffers at each of `size` positions."""
    start, end = (
        np.array(side, dtype=np.int64)
        for side in ([b.start for b in buffers], [b.end for b in buffers])
    )
    return np.cumsum(changes(start, end, np.array([b.bytes for b in buffers]), size))


def _alive(lowering: Lowering, buffers: Sequence[_Buffer]) -> tuple[Alive, ...]:
    """Groups buffers by class and purpose, the largest first."""
    program, values = lowering.graph.program, lowering.graph.values
    found: dict[tuple[int, str], list[float]] = {}
    for each in buffers:
        found.setdefault((each.index, each.kind), []).append(each.bytes)
    alive = [
        Alive(
            program.describe(values[index].value.index),
            _source(lowering, index),
            kind,
            round(sum(bytes_)),
            len(bytes_),
        )
        for (index, kind), bytes_ in found.items()
    ]
    return tuple(sorted(alive, key=lambda item: -item.bytes))


def _source(lowering: Lowering, index: int) -> str:
    producer = lowering.graph.values[index].value.producer
    return "" if producer is None else lowering.graph.program.operations[producer].source


def _where(lowering: Lowering, kernel: int | None) -> str:
    if kernel is None:
        return "the end of the step"
    op = lowering.graph.program.operations[kernel]
    return f"{op.title} at {op.source}" if op.source else op.title
