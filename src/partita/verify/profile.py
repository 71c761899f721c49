"""Comparison of a profiled run with the prediction: operation by operation, where names match.

`jax.profiler.trace(folder)` leaves a trace of a run, in which every kernel has the name of its HLO
instruction. The compiled program gives the operation and the user's source line of each. A fused
kernel only has those of its root, so part of a step has no counterpart; the report says how much.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from partita import files
from partita.cost.timeline.intervals import COMPUTE, Timeline
from partita.errors import FileError
from partita.escape import printed
from partita.program.collectives import COLLECTIVES
from partita.text import Text, new_table, plain, relative, seconds
from partita.verify.hlo import HloModule, parse
from partita.verify.lines import Key, Lines

MOST_BYTES = 2**31
"""Bytes that a trace may have, unpacked or not."""

MOST_ROWS = 30
"""Operations that a report lists."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One operation at one line: seconds per step and device."""

    name: str
    source: str
    predicted: float
    measured: float


@dataclasses.dataclass(frozen=True, repr=False)
class Profile:
    """Comparison of predicted and measured times, in seconds per step and device; prints as a
    report."""

    module: str
    """The compiled program that the trace is of."""
    runs: int
    """Number of runs in the trace, on all devices together."""
    operations: tuple[Measured, ...]
    """Operations that both have, longest first."""
    predicted_rest: float
    """Seconds of operations that were predicted and not found."""
    measured_rest: float
    """Seconds of operations that were found and not predicted by that name and line."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data that JSON can hold."""
        return dataclasses.asdict(self)

    def view(self) -> RenderableType:
        """The report as something that rich can print."""
        title = f"Profile of {self.module}: seconds per step and device, {self.runs} runs"
        table = new_table(title, "operation", "line", "predicted", "measured", "predicted/measured")
        for each in self.operations[:MOST_ROWS]:
            share = f"{each.predicted / each.measured:.2f}" if each.measured else ""
            times = seconds(each.predicted), seconds(each.measured)
            table.add_row(each.name, relative(each.source), *times, share)
        both = [
            sum(getattr(o, side) for o in self.operations) for side in ("predicted", "measured")
        ]
        rest = (
            f"matched: predicted {seconds(both[0])}, measured {seconds(both[1])}; not matched, "
            f"since kernels are fused otherwise: predicted {seconds(self.predicted_rest)}, "
            f"measured {seconds(self.measured_rest)}"
        )
        return Group(table, Text(rest))

    @printed
    def __str__(self) -> str:
        return plain(self.view())

    @printed
    def __repr__(self) -> str:
        return f"<Profile of {self.module}: {len(self.operations)} operations>"


def profile(timeline: Timeline, program: str, folder: str | Path) -> Profile:
    """Compares a profile with a prediction.

    Args:
      timeline: the predicted step.
      program: the profiled program, compiled, as HLO.
      folder: the argument of `jax.profiler.trace`.

    Raises:
      FileError: there is no trace in the folder, or none of this program.
    """
    module = parse(program)
    name = re.match(r"HloModule ([\w.\-]+)", program)
    told = name[1].rstrip(",") if name else ""
    times, runs = _kernels(module, told, folder)
    measured: dict[Key, float] = defaultdict(float)
    keys = _keys(module, program)
    for kernel, total in times.items():
        measured[keys.get(kernel, (kernel, ""))] += total / runs
    predicted = _predicted(timeline)
    both = [Measured(*key, predicted[key], measured[key]) for key in predicted if key in measured]
    return Profile(
        told,
        runs,
        tuple(sorted(both, key=lambda each: -each.measured)),
        sum(t for key, t in predicted.items() if key not in measured),
        sum(t for key, t in measured.items() if key not in predicted),
    )


def _predicted(timeline: Timeline) -> dict[Key, float]:
    """Seconds of every operation; of collectives on their links, whatever they are of."""
    found: dict[Key, float] = defaultdict(float)
    for each in timeline.intervals:
        if each.lane == COMPUTE and each.kind == "compute" and each.collective is None:
            found[each.name, each.source] += each.busy
        elif each.kind in ("exposed", "hidden") and each.collective is not None:
            found[each.name.split()[0], ""] += each.busy
    return dict(found)


def _kernels(module: HloModule, name: str, folder: str | Path) -> tuple[dict[str, float], int]:
    """Seconds of every instruction in a trace, all devices and steps together, and how often the
    program ran."""
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    others = set[str]()
    for event in _events(folder):
        kernel, of = event.args.hlo_op, event.args.hlo_module
        if kernel is None or not _same(of, name):
            others |= {of} if kernel is not None else set()
            continue
        times[kernel] += event.dur * 1e-6
        counts[kernel] += 1
    entry = module.computations.get(module.entry)
    outermost = [counts[each.name] for each in entry or () if each.name in counts]
    if not outermost:
        what = f"; it has {', '.join(sorted(others))}" if others else ""
        raise FileError(f"the trace in {str(folder)!r} has no run of {name}{what}")
    return dict(times), max(outermost)


def _same(of: str, name: str) -> bool:
    """Returns whether a trace's module is the program; some traces append a number to its name."""
    return re.sub(r"\(\d+\)$", "", of) == name


class _Args(msgspec.Struct, frozen=True):
    """Instruction of an event, and the module that contains it."""

    hlo_op: str | None = None
    hlo_module: str = ""


class _Event(msgspec.Struct, frozen=True):
    """An event of a trace."""

    ph: str = ""
    dur: float = 0.0
    """Microseconds."""
    args: _Args = _Args()


class _Trace(msgspec.Struct, frozen=True):
    """A trace as JAX's profiler writes it."""

    traceEvents: list[_Event]  # noqa: N815


def _events(folder: str | Path) -> Iterator[_Event]:
    """The events of all traces that a folder has."""
    found = sorted(Path(folder).rglob("*.trace.json.gz"))
    if not found:
        raise FileError(
            f"there is no *.trace.json.gz in {str(folder)!r}; jax.profiler.trace({str(folder)!r}) "
            "around some steps writes one"
        )
    for path in found:
        try:
            trace = msgspec.json.decode(_unpacked(path), type=_Trace)
        except (
            *(OSError, ValueError, EOFError, RecursionError),
            *(zlib.error, msgspec.MsgspecError),
        ) as error:
            raise FileError(f"{str(path)!r} is no trace that can be read: {error}") from None
        yield from (event for event in trace.traceEvents if event.ph == "X")


def _unpacked(path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(files.read(path, MOST_BYTES))) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"unpacked it has more than {MOST_BYTES:,} bytes")
    return data


def _keys(module: HloModule, program: str) -> dict[str, Key]:
    """Returns the operation and line of every instruction; for collectives, their kind."""
    lines, found = Lines(program), dict[str, Key]()
    kinds = {code: kind for kind, each in COLLECTIVES.items() for code in each.hlo.opcodes}
    for computation in module.computations.values():
        for each in computation:
            opcode = each.opcode.removesuffix("-start").removesuffix("-done")
            key = (kinds[opcode], "") if opcode in kinds else lines.of(each)
            if key is not None:
                found[each.name] = key
    return found
