"""Plan as plain data: for `--json`, for the page, and for `Plan.report`.

Names, numbers, lists and dicts only. Times in seconds, sizes in bytes per device. `docs/report.md`
documents each field. Fields are added, not renamed or removed, in a minor release.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

SCHEMA = 1
"""Raised by a change that an older reader would misread."""

Entries = list[str | list[str] | None]
"""A sharding: for each dimension the axis that splits it, several, or None."""


@dataclasses.dataclass(frozen=True)
class TrafficData:
    """All collectives of one kind over the same axes."""

    kind: str
    axes: list[str]
    count: int
    bytes: int
    seconds: float
    combined: dict[str, Any] | None = None
    """`count` and `seconds` after a compiler has combined them."""


@dataclasses.dataclass(frozen=True)
class EstimateData:
    """An `Estimate`."""

    step_time: float
    serial_time: float
    compute_time: float
    exposed_time: float
    hidden_time: float
    link_times: list[float]
    peak_memory: int
    argument_memory: int
    constant_memory: int
    host_memory: int
    offloaded: dict[str, Any]
    capacity: int
    fits: bool


@dataclasses.dataclass(frozen=True)
class SuggestionData:
    """Suggestion in place of a refused action; without figures if they were not estimated."""

    text: str
    step_time: float | None
    peak_memory: int | None
    fits: bool | None


@dataclasses.dataclass(frozen=True)
class RefusalData:
    """A request that was not met."""

    what: str
    reason: str
    instead: str
    suggestions: list[SuggestionData]


@dataclasses.dataclass(frozen=True)
class ProposalData:
    """One of the best plans of a search."""

    decisions: list[str]
    step_time: float
    compute_time: float
    exposed_time: float
    hidden_time: float
    peak_memory: int
    fits: bool
    collectives: dict[str, int]
    shardings: dict[str, Entries]
    """Shardings of the arguments, unless they are replicated in all of these plans."""


@dataclasses.dataclass(frozen=True)
class SearchData:
    """Record of a search."""

    evaluations: int
    curve: list[list[float]]
    """Evaluations, step time and peak memory of each plan that was better than all before it."""
    proposals: list[ProposalData]


@dataclasses.dataclass(frozen=True)
class TacticData:
    """Record of one tactic."""

    name: str
    decisions: list[str]
    tiled: dict[str, Entries]
    actions: list[str]
    refused: list[str]
    alternatives: list[str]
    blocked: list[str]
    conflicts: list[str]
    resolved: list[str]
    warnings: list[str]
    replicated: list[str]
    collectives: dict[str, int]
    before: EstimateData
    estimate: EstimateData
    refusals: list[RefusalData]
    """`refused`, with the suggestions of each."""
    search: SearchData | None
    """Search of the tactic, if it searched and the plan was not loaded."""


@dataclasses.dataclass(frozen=True)
class ArgumentData:
    """Arguments that are equivalent, with equal shardings."""

    name: str
    count: int
    type: str
    sharding: Entries
    shape: list[int]
    shard: list[int]
    """Shape of one device's shard."""
    bytes: int
    """Bytes of one of them, on one device."""
    purpose: str
    """`parameters`, `optimizer state` or `inputs`; empty where the program is not at hand."""


@dataclasses.dataclass(frozen=True)
class MoveData:
    """Equivalent collectives, with their reason."""

    number: int
    """Number of the first one in `Plan.collectives`."""
    kind: str
    axes: list[str]
    bytes: int
    """Payload of one execution."""
    count: int
    """Executions per step, of all of them."""
    seconds: float
    """Time of one execution, by itself."""
    exposed_seconds: float
    """Exposed time of all of them, which compute waits for: after combining, which saves
    latencies."""
    hidden_seconds: float
    """Time of all of them that overlaps with compute."""
    value: str
    type: str
    source: str
    """The operation that makes the value, with its line."""
    uses: list[str]
    reasons: list[str]
    decisions: list[str]


@dataclasses.dataclass(frozen=True)
class TimelineData:
    """One step in time, as tables: each interval names its texts by number."""

    lanes: list[str]
    kinds: list[str]
    names: list[str]
    sources: list[str]
    intervals: list[list[float]]
    """Lane, kind, start and length in microseconds, name, source, collective (-1 if none), and
    executions."""
    iterations: int


@dataclasses.dataclass(frozen=True)
class AliveData:
    """Values that are alive at the peak."""

    value: str
    source: str
    kind: str
    bytes: int
    count: int


@dataclasses.dataclass(frozen=True)
class MemoryData:
    """Memory over the step."""

    peak: int
    at: float
    """Position of the peak, as a share of the kernels of the step."""
    where: str
    capacity: int
    breakdown: dict[str, int]
    alive: list[AliveData]
    positions: list[float]
    """Shares of the kernels of the step, at which `over_time` gives the live bytes."""
    over_time: dict[str, list[float]]
    """Bytes, by what they are for."""


@dataclasses.dataclass(frozen=True)
class DecisionData:
    """The decision in words."""

    text: str
    strategy: list[str]
    """Role of each axis."""
    binds: str
    """Bottleneck that a faster step would have to change first."""


@dataclasses.dataclass(frozen=True)
class DetailsData:
    """Details that take a while to compute, and that only the page and `Plan.report` have."""

    moves: list[MoveData]
    """Collectives, longest first."""
    timeline: TimelineData
    memory: MemoryData
    notes: list[str]
    """Notes on the program, apart from its plan."""


@dataclasses.dataclass(frozen=True)
class PlanData:
    """A plan."""

    schema: int
    partita: str
    """The version that wrote it."""
    program: str
    mesh: dict[str, int]
    hardware: str
    decision: DecisionData
    estimate: EstimateData
    most_memory: int
    meshes: list[dict[str, Any]]
    idle_axes: list[dict[str, Any]]
    history: list[TacticData]
    colors: list[dict[str, Any]]
    conflicts: list[dict[str, Any]]
    collectives: list[TrafficData]
    arguments: list[ArgumentData]
    verified: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Output of `Verification.as_dict` for each requested compilation."""
    details: DetailsData | None = None


def named(entry: str | Sequence[str] | None) -> list[str]:
    """Returns the axes of an entry of a sharding."""
    return [] if entry is None else [entry] if isinstance(entry, str) else list(entry)


def listed(entries: Iterable[str | Sequence[str] | None]) -> Entries:
    """Returns a sharding as JSON has it: with lists of axes."""
    return [each if each is None or isinstance(each, str) else list(each) for each in entries]
