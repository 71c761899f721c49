"""What combining saves in the cost of a lowering: of what becomes one collective, one latency.

`partita.cost.combine` says what a compiler makes of a program, instruction by instruction. That is
too slow for a search, so here collectives are counted by the values that they are of. Those along
the same axes, in the same loop, become one where none needs another:

- Sums with as many sums after them, on the longest way to the end of the program, do not need each
  other: one that needs another has one fewer. So the sums of all weights' gradients become one, and
  those of activations, layer after layer, do not.
- What is gathered and has as many sums before it does not need each other either: all weights.

Others that a compiler combines are taken to stay by themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from partita.analysis import ClassGraph
from partita.cost.collectives import Interconnect
from partita.cost.combine import alike
from partita.cost.hardware import Hardware
from partita.cost.timing import Timing
from partita.spmd.steps import Step

Part = tuple[int, int, int, float]
"""Collectives of a value class that may be combined with others of the same group: the number of
the group, how many run per step, the bytes of their results, and the seconds of latency beside
other work."""


class _Place(NamedTuple):
    """Where a collective is: those of one kind at one place become one."""

    region: int
    times: int
    """How often it runs per step."""
    level: int
    """How many sums are after it, or before it."""


class Combining:
    """The groups of collectives that a compiler makes one of, as far as it has room."""

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
        self._latencies: list[dict[int, float]] = []
        """By group, the seconds of latency of one collective on each link."""
        self._times: list[int] = []
        """By group, how often the loops around it run per step."""
        self._places: dict[tuple[int, bool], list[tuple[_Place, int]]] = {}

    def parts(self, index: int, step: Step, hidden: float) -> Iterator[Part]:
        """What may be combined of one step of the members of a value class.

        Args:
          index: of the value class.
          step: of a reshard.
          hidden: the share of members for which it overlaps with other work, but for its launch,
            if the compiler lets it.
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
        """Seconds that compute does not wait, and those that each link does not work, as several
        become one."""
        exposed, links = 0.0, [0.0] * self._network.links
        for group, fewer, runs, beside in self._fewer(parts):
            latency = self._latencies[group]
            total = sum(latency.values())
            exposed += fewer * (runs * total - beside)
            for link, seconds in latency.items() if beside else ():
                links[link] += fewer * beside * seconds / total
        return exposed, links

    def shares(self, parts: Iterable[Part]) -> dict[int, tuple[float, dict[int, float]]]:
        """By group, of each latency the share that is saved, and the latency on each link."""
        return {group: (fewer, self._latencies[group]) for group, fewer, _, _ in self._fewer(parts)}

    def _fewer(self, parts: Iterable[Part]) -> Iterator[tuple[int, float, int, float]]:
        """The groups of which several become one: the share of latencies that this saves, how many
        run per step, and the seconds of latency beside other work."""
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
        """The links of a step, each with the seconds of latency that combining may save there."""
        if (
            step.kind not in self._kinds
            or not step.is_collective
            or step.after.bytes >= self._limit
        ):
            return []
        return list(self._network.by_link(step.kind, step.axes, 0))

    def of_sum(self, value: int) -> _Place:
        """Where a sum of a value is."""
        program, level = self._graph.program, self._timing.sums_after[value]
        return _Place(program.home(value), program.defined_times(value), level)

    def _group(self, step: Step, place: _Place) -> int:
        key = (*alike(step), place)
        if key not in self._numbers:
            self._numbers[key] = len(self._latencies)
            latency: dict[int, float] = {}
            for link, seconds in self._network.by_link(step.kind, step.axes, 0):
                latency[link] = latency.get(link, 0.0) + seconds
            self._latencies.append(latency)
            self._times.append(place.times)
        return self._numbers[key]

    def _where(self, index: int, sums: bool) -> Sequence[tuple[_Place, int]]:
        """Where the members of a class are, and how many there."""
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
