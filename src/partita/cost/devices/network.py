"""Networks as data: topology and speed of the links between devices, and times of collectives."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from partita.cost.devices.schema import (
    MOST_COUNTED,
    Bytes,
    BytesPerSecond,
    Figure,
    Fraction,
    Seconds,
    Table,
    unit,
)
from partita.errors import closest
from partita.escape import printed
from partita.spmd import COLLECTIVES


class CollectiveTime(Table, frozen=True):
    """Time that one kind of collective takes through a switch.

    It starts, then every device sends what a ring of all devices would have it send: `(n - 1) / n`
    of the payload, twice that for an all_reduce, all of it for a permutation. Data go in chunks,
    one behind the other. Few large ones leave devices waiting for the first, of many small ones
    each has a cost; with the best number of them, what takes a time t to send takes
    `2 sqrt(chunk * t)` more, which is why the bandwidth climbs slowly with the size.

    Attributes:
        start: seconds, however few devices and bytes there are.
        bandwidth: bytes/s that a device sends, of large payloads. It may be above that of the
            network: switches that add up have devices send less than a ring does.
        step: seconds for each device that takes part, except the first; none if left out.
        own: bytes/s at which a device moves its own shard, which it does not send; at once if left
            out.
        chunk: seconds that each chunk costs; none if left out.
        narrow: bytes/s of what is sent by few of the channels; `bandwidth` if left out.
        narrow_bytes: up to so many bytes are; larger payloads take at least as long as these.
    """

    start: Seconds
    bandwidth: BytesPerSecond
    step: Seconds | None = None
    own: BytesPerSecond | None = None
    chunk: Seconds | None = None
    narrow: BytesPerSecond | None = None
    narrow_bytes: Bytes | None = None

    def __post_init__(self) -> None:
        if (self.narrow is None) != (self.narrow_bytes is None):
            raise ValueError("narrow and narrow_bytes must be stated together")


class Network(Table, frozen=True):
    """A network that joins up to `size` devices.

    Attributes:
        name: what meshes and reports call it.
        topology: a torus, along whose sides mesh axes have rings or lines, or a switch.
        size: the most devices that it joins.
        bandwidth: bytes/s that a device can send along one mesh axis: on a torus, both directions
            of that axis's ring together; through a switch, all that the device injects, one way.
        latency: seconds of one hop of the torus or one step of a ring through the switch.
        sides: of a torus: two or three; more axes than that share sides, and with them links. As
            many as there are axes if left out.
        longest_side: of a torus: the most devices along a side; longer axes go along several. Any
            number if left out.
        wrap: on a torus, only axes whose size is a multiple of this, and more than 2, close to a
            ring; the others are lines, whose ends have one direction only.
        scattered_as_sums: numbers of devices; a reduce_scatter over all devices, if they are one of
            these, is compiled as an all_reduce of which each device keeps its shard.
        vectors_as_sums: whether a reduce_scatter of a vector is always compiled so.
        reached: the fraction of the bandwidth that large collectives reach; all if left out.
        rails: of a network between groups of devices that a faster one joins (nodes): whether it is
            rail-optimised, with a link between the devices that have the same place in their
            groups; if not, one ring goes through all devices of all groups. Either way both
            networks work at the same time, one chunk behind the other. If left out, one works after
            the other, and a device meets those with its place in other groups.
        collectives: how long kinds of collectives take through a switch; those that are left out
            take what follows from bandwidth and latency.
        source: where those of these fields are from that have no source of their own.
    """

    name: str
    topology: Literal["torus", "switch"]
    size: int
    bandwidth: Annotated[Figure, unit("bytes/s", column="networks")]
    latency: Seconds
    sides: int | None = None
    longest_side: int | None = None
    wrap: int = 1
    scattered_as_sums: tuple[int, ...] = ()
    vectors_as_sums: bool = False
    source: str = ""
    reached: Fraction | None = None
    rails: bool | None = None
    collectives: dict[str, CollectiveTime] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"network {self.name!r} must join at least 2 devices, got {self.size}")
        if self.size > MOST_COUNTED:
            raise ValueError(
                f"network {self.name!r} must join at most {MOST_COUNTED} devices, got {self.size}"
            )
        if self.wrap < 1:
            raise ValueError(f"network {self.name!r}: wrap must be at least 1, got {self.wrap}")
        for name, number in (("sides", self.sides), ("longest_side", self.longest_side)):
            if number is not None and (number < 1 or self.topology != "torus"):
                raise ValueError(
                    f"network {self.name!r}: {name} is of a torus, at least 1, got {number}"
                )
        if self.reached is not None and self.reached.value > 1:
            raise ValueError(
                f"network {self.name!r}: reached is a fraction of the bandwidth, at most 1, got "
                f"{self.reached.value}"
            )
        if self.collectives and self.topology != "switch":
            raise ValueError(f"network {self.name!r}: only a switch has times of collectives")
        for kind in self.collectives:
            if kind not in COLLECTIVES:
                raise ValueError(
                    f"network {self.name!r} has an unknown collective {kind!r}"
                    f"{closest(kind, COLLECTIVES)}; expected some of {', '.join(COLLECTIVES)}"
                )

    @printed
    def __str__(self) -> str:
        return (
            f"{self.topology} of up to {self.size}, {self.bandwidth.value / 1e9:.4g} GB/s, "
            f"{self.latency.value * 1e6:.3g} us a step"
        )
