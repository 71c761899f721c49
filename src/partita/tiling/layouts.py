"""Layouts as the entries of a `PartitionSpec`."""

from __future__ import annotations

from partita.mesh import Mesh
from partita.tiling.tiling import Axes, Layout


def entries(layout: Layout, mesh: Mesh) -> tuple[str | tuple[str, ...] | None, ...]:
    """Returns a layout as one entry of a `PartitionSpec` for each dimension."""

    def entry(axes: Axes) -> str | tuple[str, ...] | None:
        names = mesh.axis_names(axes)
        return None if not names else names[0] if len(names) == 1 else names

    return tuple(entry(axes) for axes in layout)


def spec(layout: Layout, mesh: Mesh) -> tuple[str | tuple[str, ...] | None, ...]:
    """Returns a layout as the entries of a `PartitionSpec`, without trailing `None`s."""
    found = list(entries(layout, mesh))
    while found and found[-1] is None:
        found.pop()
    return tuple(found)
