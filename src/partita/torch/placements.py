"""Layouts of partita as placements of DTensor.

A layout says for each dimension which axes of the mesh split it, major first. Placements say for
each axis of the mesh what it does: `Shard(dim)`, `Replicate()` or `Partial()`; where two axes split
one dimension, the one that comes first in the mesh is the major one.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from partita.errors import UnsupportedError
from partita.tiling import Layout

Placements = tuple[Placement, ...]


def placements_of(layout: Layout, axes: int, unreduced: Collection[int] = ()) -> Placements:
    """The placements of a value, one for each axis of the mesh.

    Args:
      layout: for each dimension the axes that split it.
      axes: how many axes the mesh has.
      unreduced: axes over which sums are outstanding.
    """
    made: list[Placement] = [Partial() if a in unreduced else Replicate() for a in range(axes)]
    for dim, split in enumerate(layout):
        for axis in split:
            made[axis] = Shard(dim)
    return tuple(made)


def out_of_order(layout: Layout) -> list[int]:
    """The dimensions that several axes split in another order than the mesh has them."""
    return [dim for dim, split in enumerate(layout) if list(split) != sorted(split)]


def check_order(name: str, layout: Layout, names: tuple[str, ...]) -> None:
    """Raises `UnsupportedError` for a layout whose order DTensor cannot say."""
    for dim in out_of_order(layout):
        said = ", then ".join(names[axis] for axis in layout[dim])
        wanted = ", then ".join(names[axis] for axis in sorted(layout[dim]))
        raise UnsupportedError(
            f"{name} is split in dimension {dim} along {said}; DTensor splits along {wanted}: name "
            "the axes of the mesh in that order, or put the tactics in the order of the mesh"
        )
