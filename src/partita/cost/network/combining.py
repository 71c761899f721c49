"""Small collectives that a compiler combines into one: they wait once for the network, not each.

XLA combines collectives of one kind over the same devices that do not depend on each other. Sums
must have the same type, gathers the same dimension, and their results at most a number of bytes.
The hardware file lists the kinds. A plan keeps every collective separate, as it is given to XLA.
This module counts what XLA makes of them, for the step time and for the report.

Collectives are counted by their values, which is quick enough for a search. Those along the same
axes, in the same loop, are combined if none needs another:

- Sums with as many sums after them, on the longest path to the end of the program, do not need each
  other: one that needs another has one fewer. So the sums of all weights' gradients become one, and
  those of activations, layer after layer, do not.
- Gathers with as many sums before them do not need each other either: all weights.

Other collectives that a compiler combines are assumed to stay separate, and it may leave some of
these separate: `tests/cost/test_combining.py` compares with XLA.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from partita.analysis import ClassGraph
from partita.cost.devices.hardware import Hardware
from partita.cost.estimate import Together, Traffic
from partita.cost.kernels.timing import Timing
from partita.cost.network.collectives import Interconnect
from partita.spmd.steps import Step

Part = tuple[int, int, int, float]
"""Collectives of a value class that may be combined with others of the same group: the number of
the group, runs per step, bytes of their results, and seconds of latency that other work hides."""


class _Place(NamedTuple):
    """Place of a collective in the program: those of one kind at one place are combined."""

    region: int
    times: int
    """Number of runs per step."""
    level: int
    """Number of sums after it, or before it if it is a gather."""


class Combining:
    """Groups of collectives that a compiler combines, up to its limit of bytes."""

    def __init__(
        self, graph: ClassGraph, timing: Timing, network: Interconnect, hardware: Hardware
    ) -> None:
        self._network = network
        self._kinds = frozenset(hardware.combined)
        self._overlapped = frozenset(hardware.overlapped)
        self._limit = int(hardware.combine.value)
        self._graph = graph
        self._timing = timing
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kind_of: list[tuple[str, tuple[str, ...]]] = []
        """Kind and axes of the collectives of each group."""
        self._latencies: list[dict[int, float]] = []
        """Seconds of latency of one collective on each link, by group."""
        self._times: list[int] = []
        """Number of runs per step of the loops around it, by group."""
        self._places: dict[tuple[int, bool], list[tuple[_Place, int]]] = {}

    def parts(self, index: int, step: Step, hidden: float) -> Iterator[Part]:
        """Yields the parts of one step of a value class that may be combined.

        Args:
          index: of the value class.
          step: of a reshard.
          hidden: the share of members whose collective overlaps with other work if the compiler
            lets it, except for its launch.
        """
        size = step.after.bytes
        if step.kind not in self._kinds or not step.is_collective or size >= self._limit:
            return
        for place, count in self._where(index, step.collective.reduces):
            group = self._group(step, place)
            runs = count * place.times
            beside = 0.0
            if step.kind in self._overlapped:
                latency = sum(self._latencies[group].values())
                beside = hidden * max(latency - self._network.launch(step.axes), 0.0)
            yield group, runs, runs * size, runs * beside

    def saved(self, parts: Iterable[Part]) -> tuple[float, list[float]]:
        """Returns the seconds that combining saves: those that compute waits, and on each link."""
        exposed, links = 0.0, [0.0] * self._network.links
        for group, fewer, runs, beside in self._fewer(parts):
            latency = self._latencies[group]
            total = sum(latency.values())
            exposed += fewer * (runs * total - beside)
            for link, seconds in latency.items() if beside else ():
                links[link] += fewer * beside * seconds / total
        return exposed, links

    def combined(
        self, parts: Iterable[Part], traffic: Mapping[tuple[str, tuple[str, ...]], Traffic]
    ) -> Mapping[tuple[str, tuple[str, ...]], Together]:
        """Returns the collectives after combining, by kind and axes, for the kinds that a compiler
        combines.

        Args:
          parts: of all plans of a lowering.
          traffic: all its collectives, each counted separately.
        """
        found = {
            key: Together(each.count, each.seconds)
            for key, each in traffic.items()
            if key[0] in self._kinds
        }
        for group, fewer, runs, _ in self._fewer(parts):
            apart, latency = found[self._kind_of[group]], sum(self._latencies[group].values())
            found[self._kind_of[group]] = Together(
                apart.count - round(fewer * runs), apart.seconds - fewer * runs * latency
            )
        return found

    def shares(self, parts: Iterable[Part]) -> dict[int, tuple[float, dict[int, float]]]:
        """Returns the saved share of each latency, and the latency on each link, by group."""
        return {group: (fewer, self._latencies[group]) for group, fewer, _, _ in self._fewer(parts)}

    def _fewer(self, parts: Iterable[Part]) -> Iterator[tuple[int, float, int, float]]:
        """Yields the groups that combining reduces: the share of latencies that it saves, the runs
        per step, and the seconds of latency that other work hides."""
        groups: dict[int, tuple[int, int, float]] = {}
        for group, runs, size, beside in parts:
            known = groups.get(group)
            if known:
                runs, size, beside = runs + known[0], size + known[1], beside + known[2]
            groups[group] = runs, size, beside
        for group, (runs, size, beside) in groups.items():
            times = self._times[group]
            fewer = 1 - times * math.ceil(size / (times * self._limit)) / runs
            if fewer > 0:
                yield group, fewer, runs, beside

    def latencies(self, step: Step) -> list[tuple[int, float]]:
        """Returns the links of a step, with the seconds of latency that combining may save."""
        if (
            step.kind not in self._kinds
            or not step.is_collective
            or step.after.bytes >= self._limit
        ):
            return []
        return list(self._network.by_link(step.kind, step.axes, 0))

    def of_sum(self, value: int) -> _Place:
        """Returns the place of a sum of a value."""
        program, level = self._graph.program, self._timing.sums_after[value]
        return _Place(program.home(value), program.defined_times(value), level)

    def _group(self, step: Step, place: _Place) -> int:
        key = (*_alike(step), place)
        if key not in self._numbers:
            self._numbers[key] = len(self._latencies)
            latency: dict[int, float] = {}
            for link, seconds in self._network.by_link(step.kind, step.axes, 0):
                latency[link] = latency.get(link, 0.0) + seconds
            self._kind_of.append((step.kind, self._network.mesh.axis_names(step.axes)))
            self._latencies.append(latency)
            self._times.append(place.times)
        return self._numbers[key]

    def _where(self, index: int, sums: bool) -> Sequence[tuple[_Place, int]]:
        """Returns the places of the members of a class, each with their number there."""
        key = (index, sums)
        if key not in self._places:
            program = self._graph.program
            levels = self._timing.sums_after if sums else self._timing.sums_before
            found = Counter(
                _Place(program.home(member), program.defined_times(member), levels[member])
                for member in self._graph.values[index].members
            )
            self._places[key] = list(found.items())
        return self._places[key]


def _alike(step: Step) -> tuple[object, ...]:
    """Returns a key that is equal for collectives that may be combined."""
    summed = (step.combine, step.dtype) if step.collective.reduces else (step.dim,)
    return (step.kind, step.axes, *summed)
