"""Layouts of partita as placements of DTensor.

A layout says for each dimension which axes of the mesh split it, major first. Placements say for
each axis of the mesh what it does: `Shard(dim)`, `Replicate()` or `Partial()`. Where two axes split
one dimension, the one that comes first in the mesh is the major one for DTensor; if it is the minor
one in the layout, as where parameters are split by tensor parallelism first and stored in shards
then, it is `_StridedShard`, as `fully_shard` of torch has it there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from partita.tiling import Layout

Placements = tuple[Placement, ...]


def placements_of(
    layout: Layout, sizes: Sequence[int], unreduced: Collection[int] = ()
) -> Placements:
    """The placements of a value, one for each axis of the mesh.

    Args:
      layout: for each dimension the axes that split it.
      sizes: of the axes of the mesh.
      unreduced: axes over which sums are outstanding.
    """
    made: list[Placement] = [
        Partial() if axis in unreduced else Replicate() for axis in range(len(sizes))
    ]
    for dim, split in enumerate(layout):
        for place, axis in enumerate(split):
            before = math.prod(sizes[other] for other in split[:place] if other > axis)
            made[axis] = Shard(dim) if before == 1 else _StridedShard(dim, split_factor=before)
    return tuple(made)


def splits(placement: Placement) -> bool:
    """Returns whether it splits a dimension; torch's `is_shard` does not count `_StridedShard`."""
    return isinstance(placement, Shard | _StridedShard)
