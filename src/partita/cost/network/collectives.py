"""Time of a collective on all the networks of its axes.

An axis may be on several networks, the inner part on a faster one. A collective over several
networks works on one after the other, each on what the one before has left. An all_reduce scatters
on the fast network first, so that the slow one only sees a share.

How the data of each kind of collective travel is in `partita.program.collectives`; how long each
way of travelling takes on one network in `partita.cost.network.transfer_time`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from partita.cost.devices.hardware import Hardware
from partita.cost.devices.network import Network
from partita.cost.network.torus import Along, lay
from partita.cost.network.transfer_time import Part, TransferStage, TransferTime, stages
from partita.errors import MeshError, closest
from partita.mesh import Mesh
from partita.program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    COLLECTIVES,
    LOCAL,
    REDUCE_SCATTER,
    CollectiveKind,
    Travel,
)
from partita.spmd.steps import Step
from partita.tiling import Axes


@dataclasses.dataclass(frozen=True)
class Interconnect:
    """The parts of every axis of a mesh, innermost first."""

    mesh: Mesh
    parts: tuple[tuple[Part, ...], ...]

    @property
    def links(self) -> int:
        """Number of links; collectives on different links do not wait for each other."""
        return 1 + max((part.link for parts in self.parts for part in parts), default=0)

    def is_sum(self, kind: str, axes: Axes) -> bool:
        """Returns whether a reduce_scatter over these axes becomes an all_reduce and a slice."""
        if kind != REDUCE_SCATTER.name or self.mesh.size(axes) != self.mesh.devices:
            return False
        parts = self._parts(axes)
        return len({part.network.name for part in parts}) == 1 and (
            self.mesh.devices in parts[0].network.scattered_as_sums
        )

    def compiled_kind(self, step: Step) -> str:
        """Returns the kind of collective that a step is compiled to."""
        if step.kind == REDUCE_SCATTER.name and step.of_vector:
            parts = self._parts(step.axes)
            if parts and all(part.network.vectors_as_sums for part in parts):
                return ALL_REDUCE.name
        return step.kind

    def seconds(self, step: Step) -> float:
        """Returns the seconds of one step of a reshard; 0 for a local one."""
        return sum(time for _, time in self.step_by_link(step))

    def step_by_link(self, step: Step) -> Iterator[tuple[int, float]]:
        """Yields the links that a step uses one after the other, each with its seconds."""
        if not step.layouts and (step.send is None or step.send.near):
            yield from self.by_link(self.compiled_kind(step), step.axes, step.bytes)
            return
        for stage in stages(self._parts(step.axes)):  # shards go to any other device along these
            yield stage.link, stage.permute(step.kind, step.bytes).total

    def launch(self, axes: Axes) -> float:
        """Returns the seconds for which launching a collective keeps a device busy: one latency of
        the fastest network."""
        parts = self._parts(axes)
        return min((part.network.latency.value for part in parts), default=0.0)

    def collective_seconds(self, kind: str, axes: Axes, size: int) -> float:
        """Returns the seconds of a collective over `axes` with `size` bytes per device.

        The payload is the larger of operand and result, as in `Step.bytes`.
        """
        return sum(time for _, time in self.by_link(kind, axes, size))

    def by_link(self, kind: str, axes: Axes, size: int) -> Iterator[tuple[int, float]]:
        """Yields the links that a collective uses one after the other, each with its seconds.

        Transfers at the same time count once: on the link that takes longest, or on the first one
        of equals.
        """
        parts = self._parts(axes)
        if kind in LOCAL or not parts:
            return
        made = ALL_REDUCE.name if self.is_sum(kind, axes) else kind
        collective = COLLECTIVES[made]
        times = _TIMES[collective.travel](stages(parts), collective, size)
        slowest = times[-1][0].network
        if len(times) > 1 and slowest.rails is not None:
            longest, _ = max(times, key=lambda each: each[1].moving)
            waiting = sum(time.waiting for _, time in times)
            yield longest.link, waiting + max(time.moving for _, time in times)
        else:
            yield from ((stage.link, time.total) for stage, time in times)

    def _parts(self, axes: Axes) -> list[Part]:
        return [part for axis in axes for part in self.parts[axis]]


Times = list[tuple[TransferStage, TransferTime]]


def _to_neighbour(on: Sequence[TransferStage], collective: CollectiveKind, size: int) -> Times:
    # Some neighbours are across the slowest network of the axes.
    return [(on[-1], on[-1].to_neighbour(collective.name, size))]


def _pairwise(on: Sequence[TransferStage], collective: CollectiveKind, size: int) -> Times:
    """Returns the time on each network of the shards that are exchanged there.

    With rails, nearly everything crosses each network: first to the device nearby that has the same
    place as the receiver, then on to the receiver. Without rails, a device sends directly to every
    other one, so that only the shards for devices nearby take the faster network.
    """
    times, left = [], float(size)
    for stage in reversed(on):
        times.append((stage, stage.pairwise(collective.name, left)))
        if stage.network.rails is False:
            left /= stage.size
    return times[::-1]


def _around_rings(on: Sequence[TransferStage], collective: CollectiveKind, size: int) -> Times:
    """Returns the time on each network of the data that the faster ones have left.

    For a sum, all networks but the slowest scatter first, and gather the sums afterwards.
    """
    times, left = [], float(size)
    everyone = math.prod(stage.size for stage in on)
    for stage in on:
        around = everyone if on[-1].network.rails is False else stage.size
        if stage is on[-1] or collective.passes == 1:
            time = stage.around(collective.name, collective.passes, left, around)
        else:
            halves = (REDUCE_SCATTER.name, ALL_GATHER.name)
            scattered, gathered = (stage.around(half, 1, left, around) for half in halves)
            time = scattered + gathered
        times.append((stage, time))
        left /= stage.size
    return times


_TIMES: dict[Travel, Callable[[Sequence[TransferStage], CollectiveKind, int], Times]] = {
    "neighbour": _to_neighbour,
    "pairwise": _pairwise,
    "ring": _around_rings,
}
"""The time that a collective takes on each network, for the payload per device."""


def interconnect(mesh: Mesh, hardware: Hardware) -> Interconnect:
    """Places the axes of a mesh on the networks of a device type.

    Unless the mesh names networks, the last axes fill the fastest one, the rest are on slower
    ones; an axis that fits in part is split.

    Raises:
      MeshError: the mesh names a network that the hardware does not have, or fills one too far.
    """
    networks = {network.name: network for network in hardware.networks}
    rooms = {network.name: _together(mesh.devices, network.size) for network in hardware.networks}
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
        parts[axis] = _fill(mesh.sizes[axis], list(mesh.networks[axis]), rooms, used)
    order = list(networks)
    for axis in reversed(range(len(mesh.sizes))):
        if axis not in parts:
            parts[axis] = _fill(mesh.sizes[axis], order, rooms, used)
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
    return Interconnect(mesh, _placed(parts, networks))


def _placed(
    parts: Mapping[int, Sequence[tuple[str, int]]], networks: Mapping[str, Network]
) -> tuple[tuple[Part, ...], ...]:
    """Returns the parts of each axis on networks, with the links that they use there."""
    links: dict[tuple[str, int], int] = {}
    laid: dict[str, dict[int, list[Along]]] = {}
    for name, network in networks.items():
        if network.topology == "torus":
            sizes = {a: n for a in sorted(parts) for on, n in parts[a] if on == name and n > 1}
            laid[name] = lay(sizes, network.sides, network.longest_side)

    def of_axis(axis: int) -> Iterator[Part]:
        for name, size in parts[axis]:
            network = networks[name]
            if name not in laid:
                yield Part(network, size, links.setdefault((name, -1), len(links)))
                continue
            for along in laid[name][axis]:
                link = links.setdefault((name, along.side), len(links))
                yield Part(network, along.size, link, along.stride, along.length)

    return tuple(tuple(of_axis(axis)) for axis in range(len(parts)))


def _together(devices: int, most: int) -> int:
    """Returns the largest number of devices, at most `most`, that divides `devices` evenly."""
    if devices <= most:
        return devices
    pairs = ((d, devices // d) for d in range(1, math.isqrt(devices) + 1) if devices % d == 0)
    return max(d for pair in pairs for d in pair if d <= most)


def _fill(
    size: int, order: list[str], rooms: dict[str, int], used: dict[str, int]
) -> list[tuple[str, int]]:
    """Splits an axis over networks, as much as fits on each; the rest goes on the last."""
    parts = []
    for name in order:
        last = name == order[-1]
        fits = size if last else math.gcd(size, max(rooms[name] // used[name], 1))
        if fits > 1:
            parts.append((name, fits))
            used[name] *= fits
            size //= fits
        if size == 1:
            break
    return parts
