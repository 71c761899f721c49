"""The mesh: named axes and their sizes, read from whatever form a user has it in."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from partita.errors import AxisError, MeshError, closest
from partita.escape import printed


@runtime_checkable
class _MeshLike(Protocol):
    """Interface that `jax.sharding.Mesh` and `jax.sharding.AbstractMesh` share."""

    @property
    def axis_names(self) -> tuple[str, ...]: ...

    @property
    def shape(self) -> Mapping[str, int]: ...


MOST_DEVICES = 2**20
"""Devices that a mesh may have."""

Axes = tuple[int, ...]
"""Axes of a mesh by position, major first; those that split one dimension."""

Layout = tuple[Axes, ...]
"""The axes of every dimension of a value, or of every factor of an operation."""

MeshInput = Mapping[str, int] | str | _MeshLike


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A device grid. Devices are numbered row-major: the last axis varies fastest.

    Axes are known inside partita by their position, outside by their name.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    networks: tuple[tuple[str, ...], ...] = dataclasses.field(default=(), compare=False)
    """Networks that the user assigned to each axis, inner first; empty where the hardware decides.

    Meshes that differ in nothing else are equal.
    """
    given: Any = dataclasses.field(default=None, compare=False, repr=False)
    """The JAX mesh that it was read from, with its devices and the types of its axes; None for
    another form. Meshes that differ in nothing else are equal."""

    def __post_init__(self) -> None:
        if not self.names:
            raise MeshError('a mesh needs at least one axis, for example "data=8"')
        for name in self.names:
            if not isinstance(name, str) or not name:
                raise MeshError(f"a mesh has an axis {name!r}; expected a name")
        if len(self.sizes) != len(self.names):
            raise MeshError(
                f"a mesh of axes {', '.join(self.names)} has {len(self.sizes)} sizes; expected "
                f"{len(self.names)}"
            )
        if len(set(self.names)) != len(self.names):
            sizes = map(str, self.sizes)
            shown = ",".join(map("=".join, zip(self.names, sizes, strict=True)))
            raise MeshError(f"mesh {shown} names an axis twice")
        for name, size in zip(self.names, self.sizes, strict=True):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise MeshError(f"mesh axis {name!r} has size {size!r}; expected an integer >= 1")
        if len(self.networks) != len(self.names):
            object.__setattr__(self, "networks", ((),) * len(self.names))
        if self.devices > MOST_DEVICES:
            raise MeshError(f"mesh {self} has more than {MOST_DEVICES:,} devices, the most for one")

    @classmethod
    def of(cls, mesh: MeshInput | Mesh) -> Mesh:
        """The mesh given as a dict, a string `"data=8,model=4"`, or a JAX mesh.

        In a string, an axis may say which network of the hardware it uses: `"data=16@dcn"`, or
        which ones, inner first: `"data=16@ici+dcn"`.

        Raises `MeshError` for anything else.
        """
        if isinstance(mesh, Mesh):
            return mesh
        if isinstance(mesh, str):
            return cls._parse(mesh)
        if isinstance(mesh, Mapping):
            return cls(tuple(mesh), tuple(mesh.values()))
        if isinstance(mesh, _MeshLike):
            names = tuple(mesh.axis_names)
            return cls(names, tuple(mesh.shape[name] for name in names), given=mesh)
        raise MeshError(
            f"cannot read a mesh from {type(mesh).__name__}; expected a dict, a string such as "
            '"data=8,model=4", a jax.sharding.Mesh or an AbstractMesh'
        )

    @classmethod
    def _parse(cls, text: str) -> Mesh:
        axes = []
        for part in text.split(","):
            match = re.fullmatch(
                r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,18})\s*(?:@\s*([\w-]+(?:\s*\+\s*[\w-]+)*)\s*)?",
                part,
            )
            if not match:
                raise MeshError(
                    f'cannot read {part!r} in mesh "{text}"; expected axis=size or '
                    'axis=size@network, as in "data=8,model=4" or "data=16@dcn,model=8@ici"'
                )
            networks = tuple(re.split(r"\s*\+\s*", match[3])) if match[3] else ()
            axes.append((match[1], int(match[2]), networks))
        names, sizes, networks = zip(*axes, strict=True)
        return cls(names, sizes, networks)

    @property
    def devices(self) -> int:
        """Number of devices in the grid."""
        return math.prod(self.sizes)

    def axis(self, name: str) -> int:
        """Position of the axis called `name`; raises `AxisError` when there is none."""
        if name not in self.names:
            raise AxisError(
                f"mesh {self} has no axis {name!r}{closest(str(name), self.names)} "
                f"(axes: {', '.join(self.names)})"
            )
        return self.names.index(name)

    def axis_names(self, axes: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the axes at these positions."""
        return tuple(self.names[axis] for axis in axes)

    def size(self, axes: tuple[int, ...]) -> int:
        """Number of devices spanned by these axes together."""
        total = 1
        for axis in axes:
            total *= self.sizes[axis]
        return total

    def groups(self, axes: tuple[int, ...]) -> list[list[int]]:
        """Device groups that communicate along `axes`, in the order of the axes given."""
        grid = np.arange(self.devices).reshape(self.sizes)
        rest = [axis for axis in range(len(self.sizes)) if axis not in axes]
        rows: list[list[int]] = grid.transpose(*rest, *axes).reshape(-1, self.size(axes)).tolist()
        return rows

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(zip(self.names, self.sizes, strict=True))

    @printed
    def __str__(self) -> str:
        return ",".join(
            f"{name}={size}" + ("@" + "+".join(networks) if networks else "")
            for (name, size), networks in zip(self, self.networks, strict=True)
        )


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
