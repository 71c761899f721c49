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
    """Dimension that all_to_all splits; else -1."""
    before: TensorType
    """Local type before the step."""
    after: TensorType
    """Local type after the step."""
    combine: str = "add"
    send: Send | None = None
    """Block that a collective_permute sends along the dimension; the receiver appends it."""
    window: Window | None = None
    """Window that is put together along the dimension afterwards."""
    layouts: tuple[Layout, ...] = ()
    """Layouts before and after, if a collective_permute moves whole shards, or if the value has no
    elements."""

    @property
    def collective(self) -> CollectiveKind:
        """Description of its kind of step."""
        return LOCAL.get(self.kind) or COLLECTIVES[self.kind]

    @property
    def dtype(self) -> str:
        """Element type in which data moves, as StableHLO names it."""
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
        """True if all dimensions except the gathered or scattered one have size 1."""
        return all(size == 1 for dim, size in enumerate(self.before.shape) if dim != self.dim)

    def applied(self, layout: Layout) -> Layout:
        """Returns the layout of a value after the step, given that before it."""
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
        """True if devices exchange data."""
        return self.kind not in LOCAL and bool(self.axes)

    def pairs(self, mesh: Mesh) -> list[tuple[int, int]]:
        """Returns the pairs of (sender, receiver) of a collective_permute."""
        if self.send is None:
            return permutation(mesh, *self.layouts)
        groups = mesh.groups(self.axes)
        return [(group[a], group[b]) for group in groups for a, b in self.send.pairs]


@functools.cache
def permutation(mesh: Mesh, before: Layout, after: Layout) -> list[tuple[int, int]]:
    """Returns pairs of (sender, receiver) that permute shards of equal shape between two layouts.

    If several devices have a shard that several need, a pair agrees along all axes that neither
    layout has: each device may have its own partial sum along these. Each sends once and receives
    once.
    """
    places = np.indices(mesh.sizes).reshape(len(mesh.sizes), -1)
    used = {axis for axes in (*before, *after) for axis in axes}
    others = [axis for axis in range(len(mesh.sizes)) if axis not in used]
    apart = {device: tuple(places[others, device]) for device in range(mesh.devices)}

    def shard_of(layout: Layout) -> np.ndarray:
        """Returns the number of each device's shard."""
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
