"""Time of a collective: latency plus bytes over bandwidth, on the network of each of its axes.

Axes lie on networks by size: the last axes of a mesh on the fastest network until its island is
full, the rest on slower ones. A collective over several axes works axis by axis, each on what the
one before has left: for an all_reduce, scatter along the fast axis first, so that the slow network
only sees a part.
"""

from __future__ import annotations

import dataclasses

from partita.cost.hardware import Hardware, Network
from partita.mesh import Mesh
from partita.spmd.reshard import Step
from partita.tiling import Axes


@dataclasses.dataclass(frozen=True)
class Topology:
    """The network that every axis of a mesh lies on."""

    mesh: Mesh
    networks: tuple[Network, ...]

    def seconds(self, step: Step) -> float:
        """Time of one step of a reshard; nothing for a local slice."""
        return self.collective_seconds(step.kind, step.axes, step.bytes)

    def collective_seconds(self, kind: str, axes: Axes, size: int) -> float:
        """Time of a collective over `axes` with a payload of `size` bytes per device.

        The payload is the larger of what goes in and what comes out, as in `Step.bytes`.
        """
        if kind == "slice" or not axes:
            return 0.0
        if kind == "all_to_all":
            return sum(self._exchange(axis, size) for axis in axes)
        if kind == "collective_permute":
            # Between neighbours, of whom some lie across the slowest network of the axes.
            networks = [self.networks[axis] for axis in axes]
            slowest = min(networks, key=lambda network: network.bandwidth.value)
            return size / slowest.bandwidth.value + slowest.latency.value
        passes = 2 if kind == "all_reduce" else 1
        total, left = 0.0, float(size)
        for axis in sorted(axes, key=lambda a: -self.networks[a].bandwidth.value):
            total += passes * self._ring(axis, left)
            left /= self.mesh.sizes[axis]
        return total

    def _ring(self, axis: int, size: float) -> float:
        """One pass around the ring of an axis: an all_gather to, or a reduce_scatter of, `size`."""
        n, network = self.mesh.sizes[axis], self.networks[axis]
        hops = n / 2 if network.topology == "torus" else n - 1
        return (n - 1) / n * size / network.bandwidth.value + hops * network.latency.value

    def _exchange(self, axis: int, size: float) -> float:
        """An all_to_all of `size` bytes on each device."""
        n, network = self.mesh.sizes[axis], self.networks[axis]
        if network.topology == "torus":
            # Pieces travel a quarter of the ring on average, in both directions at once.
            return size * n / 4 / network.bandwidth.value + n / 2 * network.latency.value
        return (n - 1) / n * size / network.bandwidth.value + (n - 1) * network.latency.value


def topology(mesh: Mesh, hardware: Hardware) -> Topology:
    """Lays the axes of a mesh on the networks of a device kind, fastest network last axes."""
    networks: list[Network] = []
    level, island = 0, 1
    for size in reversed(mesh.sizes):
        while island * size > hardware.networks[level].size and level + 1 < len(hardware.networks):
            level += 1
        island *= size
        networks.append(hardware.networks[level])
    return Topology(mesh, tuple(reversed(networks)))
