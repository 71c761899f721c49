"""Transfer times over one network: around the rings of a torus, or through a switch.

A time has two parts. Devices wait (for a start, for hops), and they move data. Networks that pass
each other one chunk after the other add up their waits, but move at the same time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from partita.cost.devices.network import CollectiveTime, Network


@dataclasses.dataclass(frozen=True, slots=True)
class TransferTime:
    """Seconds of a collective on one network."""

    waiting: float
    moving: float

    def __add__(self, other: TransferTime) -> TransferTime:
        return TransferTime(self.waiting + other.waiting, self.moving + other.moving)

    @property
    def total(self) -> float:
        """Total seconds."""
        return self.waiting + self.moving


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Part of a mesh axis that is on one network."""

    network: Network
    size: int
    """Number of devices along it."""
    link: int
    """Number of its link: one for every side of a torus, or one for all parts through a switch."""
    stride: int = 1
    """Distance of neighbours along a side of a torus; so many lines share its links."""
    side: int = 0
    """Devices along the whole side of a torus; `size` if 0."""

    @property
    def wraps(self) -> bool:
        """True if it closes to a ring: the side does, and the part covers all of it.

        Two devices along a side have one link, and so are a line.
        """
        network, side = self.network, self.side or self.size
        closes = network.topology == "torus" and side > 2 and side % network.wrap == 0
        return closes and self.size * self.stride == side

    @property
    def bandwidth(self) -> float:
        """Bandwidth in bytes/s; the ends of a line send and receive one way only."""
        network = self.network
        reached = network.bandwidth.value * (network.reached.value if network.reached else 1.0)
        ways = 1 if network.topology == "switch" or self.wraps else 2
        return reached / (ways * self.stride)

    @property
    def hops(self) -> float:
        """Number of hops to the furthest device, or of steps of a ring through a switch."""
        return self.stride * (self.size / 2 if self.wraps else self.size - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class TransferStage:
    """Part of a collective that runs on one network, along one or several axis parts."""

    parts: tuple[Part, ...]

    @property
    def network(self) -> Network:
        """Network of all parts."""
        return self.parts[0].network

    @property
    def size(self) -> int:
        """Number of devices in a group."""
        return math.prod(part.size for part in self.parts)

    @property
    def link(self) -> int:
        """Link whose time is counted: that of the first part, as others work at the same time."""
        return self.parts[0].link

    @property
    def _sides(self) -> Sequence[Sequence[Part]]:
        """The parts along each side of a torus."""
        found: dict[int, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part.link, []).append(part)
        return list(found.values())

    def around(
        self, kind: str, passes: int, size: float, devices: int | None = None
    ) -> TransferTime:
        """Returns the time of passes around rings: one for an all_gather to, or a reduce_scatter
        of, `size` bytes.

        Several axes of a torus work at the same time, each on a share of the data, so that their
        bandwidths add up. Through a switch, all devices are one group.

        Args:
          kind: of the collective, for what the network states of it.
          passes: number of times that data go around.
          size: bytes.
          devices: number that send their shards around, if more than are in a group here.
        """
        n = devices or self.size
        stated = self.network.collectives.get(kind)
        if stated is not None:
            return _stated(stated, n, passes * (n - 1) / n * size, size / n)
        bandwidth = sum(min(part.bandwidth for part in side) for side in self._sides)
        if self.network.topology == "switch":
            bandwidth = self.parts[0].bandwidth
        hops = sum(part.hops for part in self.parts)
        waiting = hops * self.network.latency.value
        return TransferTime(passes * waiting, passes * (n - 1) / n * size / bandwidth)

    def pairwise(self, kind: str, size: float) -> TransferTime:
        """Returns the time of an all_to_all of `size` bytes on each device."""
        n, stated = self.size, self.network.collectives.get(kind)
        if stated is not None:
            return _stated(stated, n, (n - 1) / n * size, size / n)
        latency = self.network.latency.value
        if self.network.topology == "torus":
            # Shards travel a quarter of each ring on average, in both directions at once; those
            # that go along one axis first make room for those that begin with another.
            waiting = sum(part.size * part.stride / 2 * latency for part in self.parts)
            along = (sum(part.size / 4 / part.bandwidth for part in side) for side in self._sides)
            return TransferTime(waiting, size * max(along))
        times = (
            TransferTime(
                (part.size - 1) * latency, (part.size - 1) / part.size * size / part.bandwidth
            )
            for part in self.parts
        )
        return sum(times, TransferTime(0.0, 0.0))

    def permute(self, kind: str, size: float) -> TransferTime:
        """Returns the time of a permutation of shards of `size` bytes."""
        stated = self.network.collectives.get(kind)
        if stated is not None:
            return _stated(stated, 1, size, 0.0)
        latency = self.network.latency.value
        found = TransferTime(0.0, 0.0)
        for part in self.parts:
            # Around a ring a shard travels a quarter on average, in both directions at once.
            far = part.size / 4 if self.network.topology == "torus" else 1.0
            hops = max(1.0, far) * part.stride
            found += TransferTime(hops * latency, size * far / part.bandwidth)
        return found

    def to_neighbour(self, kind: str, size: float) -> TransferTime:
        """Returns the time in which every device sends `size` bytes to a neighbour."""
        stated = self.network.collectives.get(kind)
        if stated is not None:
            return _stated(stated, 1, size, 0.0)
        far = max(part.stride for part in self.parts)
        return TransferTime(
            far * self.network.latency.value, far * size / self.network.bandwidth.value
        )


def _stated(time: CollectiveTime, devices: int, sent: float, own: float) -> TransferTime:
    """Returns the time of a collective for which the network states figures, see `CollectiveTime`.

    Args:
      time: the figures.
      devices: number that take part.
      sent: bytes that each sends.
      own: bytes of its own shard, which it does not send.
    """
    waiting = time.start.value + (devices - 1) * (time.step.value if time.step else 0.0)
    moving = sent / time.bandwidth.value
    if time.narrow is not None and time.narrow_bytes is not None:
        moving = max(moving, min(sent, time.narrow_bytes.value) / time.narrow.value)
    chunks = 2 * math.sqrt(time.chunk.value * moving) if time.chunk else 0.0
    kept = own / time.own.value if time.own else 0.0
    return TransferTime(waiting, moving + chunks + kept)


def stages(parts: Sequence[Part]) -> list[TransferStage]:
    """Groups parts of axes by network, the fastest first."""
    found: dict[str, list[Part]] = {}
    for part in sorted(parts, key=lambda part: -part.network.bandwidth.value):
        found.setdefault(part.network.name, []).append(part)
    return [TransferStage(_joined(each)) for each in found.values()]


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Joins parts on one network, if one starts where another ends on a torus's side."""
    found: list[Part] = []
    for part in sorted(parts, key=lambda part: part.stride):
        for number, inner in enumerate(found):
            if part.side and inner.link == part.link and part.stride == inner.stride * inner.size:
                found[number] = dataclasses.replace(inner, size=inner.size * part.size)
                break
        else:
            found.append(part)
    return tuple(found)
