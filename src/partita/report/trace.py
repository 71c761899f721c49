"""A step in time, in the trace event format that Perfetto and chrome://tracing open.

One process is what every device computes, another the networks between them: a thread for each.
The format: "Trace Event Format", Google, 2016; complete events (`X`), and metadata (`M`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partita.cost.timeline.intervals import COMPUTE, Interval, Timeline
from partita.files import write
from partita.planning.schedule import Scheduled

DEVICES, NETWORKS = 1, 2
"""The processes of a trace."""

_MICROSECONDS = 1e6


def write_trace(plan: Scheduled, timeline: Timeline, path: str | Path) -> None:
    """Writes a trace as JSON, compressed if the name ends in `.gz`.

    Raises:
      FileError: it cannot be written.
    """
    data = json.dumps(trace(plan, timeline)).encode()
    # No time in the header: equal plans make equal files.
    write(path, gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def trace(plan: Scheduled, timeline: Timeline) -> dict[str, Any]:
    """The trace as data that JSON can hold; times in microseconds."""
    devices = f"each of {plan.mesh.devices} devices, mesh {plan.mesh} ({plan.hardware.name})"
    events = [
        _named("process_name", devices, DEVICES),
        _named("process_name", "networks", NETWORKS),
        *(_named("thread_name", n, *_place(lane)) for lane, n in enumerate(timeline.lanes)),
        *(_event(plan, interval) for interval in timeline.intervals),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "program": plan.program.name,
            "step_time_us": timeline.step_time * _MICROSECONDS,
            "iterations_drawn": timeline.iterations,
        },
    }


def _place(lane: int) -> tuple[int, int]:
    """Process and thread of a lane."""
    return (DEVICES if lane == COMPUTE else NETWORKS), lane


def _named(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _event(plan: Scheduled, interval: Interval) -> dict[str, Any]:
    process, thread = _place(interval.lane)
    return {
        "ph": "X",
        "name": interval.name,
        "cat": interval.kind,
        "pid": process,
        "tid": thread,
        "ts": interval.start * _MICROSECONDS,
        "dur": (interval.end - interval.start) * _MICROSECONDS,
        "args": dict(_details(plan, interval)),
    }


def _details(plan: Scheduled, interval: Interval) -> Iterator[tuple[str, Any]]:
    """Yields what a viewer shows of a selected event."""
    if interval.source:
        yield "source", interval.source
    if interval.collective is not None:
        yield from _collective(plan, interval.collective).items()
    yield "predicted_us", interval.busy * _MICROSECONDS
    if interval.times > 1:
        yield "executions", interval.times


def _collective(plan: Scheduled, number: int) -> Mapping[str, Any]:
    found = plan.spmd.collectives[number]
    return {
        "collective": number,
        "axes": ",".join(found.axes),
        "bytes": found.bytes,
        "devices": found.group,
        "dtype": found.dtype,
    }
