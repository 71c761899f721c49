"""Time of a collective: latency plus bytes over bandwidth, on the networks of each of its axes.

An axis may lie on several networks, inner part on a faster one. A collective over several axes, or
over several parts of one, works part by part, each on what the one before has left: for an
all_reduce, scatter along the fast part first, so that the slow network only sees a share.

How the data of each kind of collective travel is in `partita.program.collectives`; here is how long
each way of travelling takes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from partita.cost.hardware import Hardware, Network
from partita.errors import MeshError, closest
from partita.mesh import Mesh
from partita.program.collectives import ALL_REDUCE, COLLECTIVES, LOCAL, REDUCE_SCATTER, Travel
from partita.spmd.steps import Step
from partita.tiling import Axes


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a mesh axis that lies on one network."""

    network: Network
    size: int
    """Number of devices along it."""
    link: int
    """Which link it uses. Every axis of a torus has its own; all that goes through a switch shares
    one."""

    def ring(self, size: float) -> float:
        """One pass around the part: an all_gather to, or a reduce_scatter of, `size` bytes."""
        n, network = self.size, self.network
        hops = n / 2 if self._wraps else n - 1
        return (n - 1) / n * size / self._bandwidth + hops * network.latency.value

    def pairwise(self, size: float) -> float:
        """An all_to_all of `size` bytes on each device."""
        n, network = self.size, self.network
        if network.topology == "torus":
            # Shards travel a quarter of the ring on average, in both directions at once.
            return size * n / 4 / self._bandwidth + n / 2 * network.latency.value
        return (n - 1) / n * size / self._bandwidth + (n - 1) * network.latency.value

    def permute(self, size: float) -> float:
        """A permutation of shards of `size` bytes."""
        network = self.network
        # Around a ring a shard travels a quarter on average, in both directions at once.
        far = self.size / 4 if network.topology == "torus" else 1.0
        return size * far / self._bandwidth + max(1.0, far) * network.latency.value

    @property
    def _wraps(self) -> bool:
        return self.network.topology == "torus" and self.size % self.network.wrap == 0

    @property
    def _bandwidth(self) -> float:
        """Bytes/s: on a line that does not close, the ends send and receive one way only."""
        both_ways = self.network.topology == "switch" or self._wraps or self.size == 2
        return self.network.bandwidth.value / (1 if both_ways else 2)


@dataclasses.dataclass(frozen=True)
class Interconnect:
    """The parts of every axis of a mesh, innermost first."""

    mesh: Mesh
    parts: tuple[tuple[Part, ...], ...]

    @property
    def links(self) -> int:
        """How many links there are; collectives on different ones do not wait for each other."""
        return 1 + max((part.link for parts in self.parts for part in parts), default=0)

    def is_sum(self, kind: str, axes: Axes) -> bool:
        """Whether a reduce_scatter along these is compiled as a sum of which a shard is kept."""
        if kind != REDUCE_SCATTER.name or self.mesh.size(axes) != self.mesh.devices:
            return False
        parts = [part for axis in axes for part in self.parts[axis]]
        return len({part.network.name for part in parts}) == 1 and (
            self.mesh.devices in parts[0].network.scattered_as_sums
        )

    def seconds(self, step: Step) -> float:
        """Time of one step of a reshard; nothing for a local one."""
        return sum(time for _, time in self.step_by_link(step))

    def step_by_link(self, step: Step) -> Iterator[tuple[int, float]]:
        """The links that a step uses one after the other, each with the seconds it takes."""
        if not step.layouts and (step.send is None or step.send.near):
            yield from self.by_link(step.kind, step.axes, step.bytes)
            return
        for axis in step.axes:  # shards go to any other device along these
            for part in self.parts[axis]:
                yield part.link, part.permute(step.bytes)

    def launch(self, axes: Axes) -> float:
        """Seconds that a device is busy with starting a collective: one latency of the fastest
        network."""
        parts = [part for axis in axes for part in self.parts[axis]]
        return min((part.network.latency.value for part in parts), default=0.0)

    def collective_seconds(self, kind: str, axes: Axes, size: int) -> float:
        """Time of a collective over `axes` with a payload of `size` bytes per device.

        The payload is the larger of operand and result, as in `Step.bytes`.
        """
        return sum(time for _, time in self.by_link(kind, axes, size))

    def by_link(self, kind: str, axes: Axes, size: int) -> Iterator[tuple[int, float]]:
        """The links that a collective uses one after the other, each with the seconds it takes."""
        parts = [part for axis in axes for part in self.parts[axis]]
        if kind in LOCAL or not parts:
            return
        collective = COLLECTIVES[kind]
        passes = ALL_REDUCE.passes if self.is_sum(kind, axes) else collective.passes
        yield from _TIMES[collective.travel](parts, size, passes)


def _to_neighbour(parts: Sequence[Part], size: int, passes: int) -> Iterator[tuple[int, float]]:
    # Some neighbours lie across the slowest network of the axes.
    slowest = min(parts, key=lambda part: part.network.bandwidth.value)
    network = slowest.network
    yield slowest.link, size / network.bandwidth.value + network.latency.value


def _pairwise(parts: Sequence[Part], size: int, passes: int) -> Iterator[tuple[int, float]]:
    for part in parts:
        yield part.link, part.pairwise(size)


def _around_rings(parts: Sequence[Part], size: int, passes: int) -> Iterator[tuple[int, float]]:
    left = float(size)
    for part in sorted(parts, key=lambda part: -part.network.bandwidth.value):
        yield part.link, passes * part.ring(left)
        left /= part.size


_TIMES: dict[Travel, Callable[[Sequence[Part], int, int], Iterator[tuple[int, float]]]] = {
    "neighbour": _to_neighbour,
    "pairwise": _pairwise,
    "ring": _around_rings,
}
"""The links that a way of travelling uses, with the seconds it takes on each, for the parts of the
axes, the payload per device, and how often it goes around."""


def interconnect(mesh: Mesh, hardware: Hardware) -> Interconnect:
    """Lays the axes of a mesh on the networks of a device kind.

    Where the mesh does not say, the last axes fill the fastest network, the rest lie on slower
    ones; an axis that fits in part is split.

    Raises:
      MeshError: the mesh names a network that the hardware does not have, or fills one too far.
    """
    networks = {network.name: network for network in hardware.networks}
    used = dict.fromkeys(networks, 1)
    parts: dict[int, list[tuple[str, int]]] = {}
    told = [axis for axis, names in enumerate(mesh.networks) if names]
    for axis in reversed(told):
        for name in mesh.networks[axis]:
            if name not in networks:
                raise MeshError(
                    f"mesh {mesh} lays {mesh.names[axis]} on {name!r}, which {hardware.name} does "
                    f"not have{closest(name, networks)} (networks: {', '.join(networks)})"
                )
        parts[axis] = _fill(mesh.sizes[axis], list(mesh.networks[axis]), networks, used)
    order = list(networks)
    for axis in reversed(range(len(mesh.sizes))):
        if axis not in parts:
            parts[axis] = _fill(mesh.sizes[axis], order, networks, used)
            # An axis further out does not go back to a network that one before it has left.
            order = order[order.index(parts[axis][-1][0]) :] if parts[axis] else order
    for network in hardware.networks[:-1]:
        if used[network.name] > network.size:
            raise MeshError(
                f"mesh {mesh} lays axes of {used[network.name]} devices on {network.name!r}, which "
                f"joins up to {network.size} on {hardware.name}; lay an axis on "
                f"{hardware.networks[-1].name!r}, or on both, inner first: "
                f"axis=size@{network.name}+{hardware.networks[-1].name}"
            )
    links: dict[tuple[str, int], int] = {}

    def link(name: str, axis: int) -> int:
        own = axis if networks[name].topology == "torus" else -1
        return links.setdefault((name, own), len(links))

    return Interconnect(
        mesh,
        tuple(
            tuple(Part(networks[name], size, link(name, axis)) for name, size in parts[axis])
            for axis in range(len(mesh.sizes))
        ),
    )


def _fill(
    size: int, order: list[str], networks: dict[str, Network], used: dict[str, int]
) -> list[tuple[str, int]]:
    """Splits an axis over networks, as much as there is room for on each; the rest on the last."""
    parts = []
    for name in order:
        last = name == order[-1]
        fits = size if last else math.gcd(size, max(networks[name].size // used[name], 1))
        if fits > 1:
            parts.append((name, fits))
            used[name] *= fits
            size //= fits
        if size == 1:
            break
    return parts
