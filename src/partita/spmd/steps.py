"""Steps of resharding: one collective, or a local slice, on the shards of a value."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from partita.mesh import Mesh
from partita.program.collectives import COLLECTIVES, LOCAL, CollectiveKind, payload
from partita.program.combining import travels_as
from partita.program.ir import TensorType, bits
from partita.spmd.exchange import Send, Window
from partita.tiling import Axes, Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a reshard, on the device-local shard of a value."""

    kind: str
    """Name of the collective, or of a slice or mask."""
    axes: Axes
    dim: int
    """Dimension gathered, scattered or sliced (all_to_all: gathered); else -1."""
    split: int
    """Dimension that all_to_all splits, else -1."""
    before: TensorType
    """Local type before the step."""
    after: TensorType
    """Local type after the step."""
    combine: str = "add"
    send: Send | None = None
    """Of a collective_permute, what is sent along the dimension; it comes behind what is there."""
    window: Window | None = None
    """What is made of the dimension after that."""
    layouts: tuple[Layout, ...] = ()
    """Layouts before and after, of a collective_permute that moves shards as they are, and of any
    step of a value that has no elements."""

    @property
    def collective(self) -> CollectiveKind:
        """What is known of its kind."""
        return LOCAL.get(self.kind) or COLLECTIVES[self.kind]

    @property
    def dtype(self) -> str:
        """The element type in which it moves, as StableHLO names it."""
        own = self.before.dtype
        return travels_as(own, self.combine) if self.collective.reduces else own

    @property
    def bytes(self) -> int:
        """Payload per device in bytes."""
        if self.send is not None:
            return self.before.bytes * self.send.size // self.before.shape[self.dim]
        if self.dtype != self.before.dtype:
            own, moved = bits(self.before.dtype), bits(self.dtype)
            return payload(self.before.bytes, self.after.bytes) * moved // own
        return payload(self.before.bytes, self.after.bytes)

    @property
    def of_vector(self) -> bool:
        """Whether all dimensions but that which is gathered or scattered have size 1."""
        return all(size == 1 for dim, size in enumerate(self.before.shape) if dim != self.dim)

    def applied(self, layout: Layout) -> Layout:
        """The layout of a value after the step, given that before it."""
        if self.layouts:
            return self.layouts[1]
        after, kind = list(layout), self.collective
        if kind.gathers:
            after[self.dim] = tuple(axis for axis in layout[self.dim] if axis not in self.axes)
        target = self.dim if kind.scatters else self.split
        if kind.splits and target >= 0:
            after[target] = (*layout[target], *(a for a in self.axes if a not in layout[target]))
        return tuple(after)

    @property
    def is_collective(self) -> bool:
        """Whether devices exchange data."""
        return self.kind not in LOCAL and bool(self.axes)

    def pairs(self, mesh: Mesh) -> list[tuple[int, int]]:
        """Of a collective_permute, which device sends to which."""
        if self.send is None:
            return permutation(mesh, *self.layouts)
        groups = mesh.groups(self.axes)
        return [(group[a], group[b]) for group in groups for a, b in self.send.pairs]


@functools.cache
def permutation(mesh: Mesh, before: Layout, after: Layout) -> list[tuple[int, int]]:
    """Who sends its shard to whom, as pairs of devices, where shards are as large before as after.

    Where several devices have a shard that several need, those get together that agree along all
    axes that neither layout has: each may have its own part of a sum along these. Each sends once
    and receives once.
    """
    places = np.indices(mesh.sizes).reshape(len(mesh.sizes), -1)
    used = {axis for axes in (*before, *after) for axis in axes}
    others = [axis for axis in range(len(mesh.sizes)) if axis not in used]
    apart = {device: tuple(places[others, device]) for device in range(mesh.devices)}

    def shard_of(layout: Layout) -> np.ndarray:
        """The number of each device's shard."""
        number = np.zeros(mesh.devices, np.int64)
        for axes in layout:
            for axis in axes:
                number = number * mesh.sizes[axis] + places[axis]
        return number

    have, need = shard_of(before), shard_of(after)
    pairs = []
    for shard in range(int(have.max()) + 1):
        senders, receivers = np.flatnonzero(have == shard), np.flatnonzero(need == shard)
        stay = np.intersect1d(senders, receivers)
        pairs += [(int(d), int(d)) for d in stay]
        rest = (np.setdiff1d(side, stay).tolist() for side in (senders, receivers))
        pairs += zip(*(sorted(side, key=apart.__getitem__) for side in rest), strict=True)
    return sorted(pairs)
